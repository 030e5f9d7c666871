"""Reads and writes a folder with the layout of a Hugging Face hub repository: config.json, model.safetensors, README.md.

`model.safetensors` has the format of the module `own`; config.json repeats the model's configuration for the pages of
the hub. To upload the folder, use `huggingface-cli upload NAME FOLDER`.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from moespec.models.errors import CheckpointError, RunError
from moespec.models.families import Config, family, fewest_images
from moespec.models.files import read_json, sync_directory, write_synced
from moespec.models.pytrees import flatten
from moespec.models.tensors import sealed
from moespec.training.weights import own
from moespec.training.weights.record import Weights, described, of_description
from moespec.version import version

__all__ = ["OWN", "check_folder", "labels", "read", "write", "write_folder"]

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def read(path: Path, given: Any) -> Weights:
    """Reads the weights in a folder. Raises CheckpointError if config.json describes a different model or different classes."""
    weights, description = own.read_file(path / WEIGHTS, given), read_json(path / CONFIG)
    model = description.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(f"{path / CONFIG}: model={model!r}: expected a table")
    config = of_description(model, f"{path / CONFIG}: model")
    if config != weights.config:
        raise CheckpointError(f"{path / CONFIG}: its model differs from the one in {WEIGHTS}")
    names = labels(weights.classes)
    if any(key in description and description[key] != names.get(key) for key in ("id2label", "label2id")):
        raise CheckpointError(f"{path / CONFIG}: its classes differ from those in {WEIGHTS}")
    return weights


def write(path: Path, weights: Weights) -> None:
    """Writes the weights to a folder with a model card, which lists the known facts about the weights."""
    model = {"model_type": "moespec", "moespec_version": version(), "model": described(weights.config)}
    documents: dict[str, Any] = {CONFIG: model | labels(weights.classes), CARD: card(path.resolve().name, weights)}
    write_folder(path, documents, flatten(weights.params), own.metadata_of(weights))


def labels(classes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the class names in the form of the hub's config.json; empty if the class names are unknown."""
    if not classes:
        return {}
    return {
        "id2label": {str(label): name for label, name in enumerate(classes)},
        "label2id": {name: label for label, name in enumerate(classes)},
    }


def write_folder(
    path: Path, documents: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Writes model.safetensors and documents (JSON or text) to a new folder, which appears only when all files are complete.

    Replaces an existing folder if it contains only files listed in `OWN`. Raises RunError for a folder that contains other files.
    """
    check_folder(path)
    path = path.resolve()  # a link stays a link
    temporary, old = (path.with_name(f".{path.name}.{suffix}") for suffix in ("tmp", "old"))
    for rest in (temporary, old):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        write_synced(temporary / WEIGHTS, sealed(arrays, metadata))
        for name, document in documents.items():
            text = document if isinstance(document, str) else json.dumps(document, indent=1) + "\n"
            write_synced(temporary / name, text.encode())
        sync_directory(temporary)
        if path.is_dir():
            path.rename(old)
        temporary.rename(path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_directory(path.parent)


def check_folder(path: Path) -> None:
    """Raises RunError if the folder contains files not listed in `OWN`, or if it is or contains the working directory."""
    if path.resolve() in ((here := Path.cwd()), *here.parents):
        raise RunError(f"target={str(path)!r} is or contains the working directory; choose a folder inside it")
    if path.is_dir() and (others := sorted(entry.name for entry in path.iterdir() if entry.name not in OWN)):
        raise RunError(f"target={str(path)!r} already contains {others[0]!r}; choose another folder")


OWN = (WEIGHTS, CONFIG, CARD)


def card(name: str, weights: Weights) -> str:
    """Returns a model card: the model, the origin of the weights, and how to use the weights."""
    config = weights.config
    tags = ["- vision", *["- image-classification"] * bool(config.classes)]
    lines = ["---", "library_name: moespec", "tags:", *tags, "---", "", f"# {name}", ""]
    count = family(config).parameter_count(config)
    lines += [
        f"A {_kind(config)} for images of {config.image_size} x {config.image_size} pixels with {config.channels} "
        f"channel{'s' * (config.channels > 1)}, and {config.classes} classes. It has {count:,} parameters.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {title} | {text} |" for title, text in weights.about.items()),
        "",
        "```python",
        *_usage(name, weights),
        "```",
        "",
    ]
    return "\n".join(lines)


def _usage(name: str, weights: Weights) -> list[str]:
    """Returns example code that computes the label or the features of a picture."""
    config = weights.config
    images = {"mean": [0.5], "std": [0.5], "resize": 0, "background": "white", **weights.images}
    picture = f"{config.image_size}, channels={config.channels}, resize={images['resize']}, background={images['background']!r}"
    together = fewest_images(config)  # the smallest batch that fills the routers' groups
    batch = "image[None]" if together == 1 else f"np.repeat(image[None], {together}, axis=0)"
    lines = [
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        "from moespec import training",
        "from moespec.training.data.pictures import read_image",
        "",
        f"model, params = training.load({name!r})",
        f'pixels = read_image(Path("photo.jpg"), {picture})  # 0 to 255',
        f"image = ((pixels / 255 - {images['mean']}) / {images['std']}).astype(np.float32)",
        f"output = model.forward(params, model.backend.from_numpy({batch}))",
    ]
    if not config.classes:
        return [*lines, "print(output.features[0])"]
    label = "int(output.logits[0].argmax())"
    return [*lines, f"print(model.classes[{label}])" if weights.classes else f"print({label})"]


def _kind(config: Config) -> str:
    kind = {"vit": "vision transformer", "mixer": "MLP-Mixer", "sparse_mlp": "Sparse-MLP"}[described(config)["family"]]
    layers = family(config).moe_layers(config, fewest_images(config))
    if not layers:
        return kind
    routers = " and ".join(dict.fromkeys(layer.router for layer in layers))
    blocks = ", ".join(dict.fromkeys(layer.name.split("_")[0] for layer in layers))
    return f"{kind} with mixture-of-experts layers (router {routers}, blocks {blocks})"
