"""moespec's own formats of weights: the checkpoints of a run, and a safetensors file that contains the model's configuration.

The file stores the parameters by path, such as `blocks/0/mlp/w1`. The metadata are in JSON. The entry `moespec.model` is the
configuration, `moespec.about` contains facts for the model card, and `moespec.version` is the version. If known, `moespec.classes`
contains the class names in logit order, and `moespec.images` contains `Weights.images`.
"""

import json
from pathlib import Path
from typing import Any

from moespec.models.errors import CheckpointError
from moespec.models.families import family
from moespec.models.files import parsed
from moespec.models.pytrees import flatten, nested
from moespec.spec.errors import ConfigError
from moespec.training.data.options import numbers
from moespec.training.interop.layouts import SAME, Entry, to_ours
from moespec.training.loop.resolve import model_config
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.weights.files import read_safetensors, write_safetensors
from moespec.training.weights.record import Weights, described, images_of, named_classes, of_description
from moespec.version import version

__all__ = ["IMAGES", "MODEL", "metadata_of", "read_file", "read_run", "write_file"]

MODEL, ABOUT, CLASSES, VERSION = "moespec.model", "moespec.about", "moespec.classes", "moespec.version"
IMAGES = "moespec.images"


def read_run(path: Path, given: Any) -> Weights:
    """Reads the weights of a run from the newest checkpoint or from the checkpoint at `given.step`."""
    _nothing_given(given, "a run")
    directory = RunDirectory(path)
    config = directory.begun_config()
    model = model_config(config.model)
    params, step = trained_params(directory, config, step=given.step)
    params = {name: params[name] for name in family(model).parameter_shapes(model)}
    about = {
        "Source": f"moespec train, {path.name}",
        "Data": config.data.name,
        "Steps": f"{step} of {config.training.steps}",
    }
    for line in read_log(path, "evaluation"):
        if line["step"] == step:
            about["Validation accuracy"] = f"{line['accuracy']:.4f} of {line['images']} images"
    classes = named_classes(list(directory.classes()) if model.classes else [], model, str(path / "classes.json"))
    images = {name: list(numbers(f"data.{name}", getattr(config.data, name))) for name in ("mean", "std")}
    images |= {name: getattr(config.data, name) for name in ("resize", "background")}
    return Weights(model, params, about, classes, images)


def read_file(path: Path, given: Any) -> Weights:
    """Reads the weights from a file that `write_file` wrote."""
    _nothing_given(given, "a moespec file")
    arrays, metadata = read_safetensors(path)
    if MODEL not in metadata:
        raise CheckpointError(f"{path}: not a moespec file (no {MODEL} in its metadata)")
    where = f"{path}: metadata"
    config = of_description(parsed(metadata[MODEL], where), f"{path}: {MODEL}")
    about = {str(title): str(text) for title, text in parsed(metadata.get(ABOUT, "{}"), where).items()}
    names = parsed(metadata.get(CLASSES, "[]"), where, list)
    images = images_of(parsed(metadata.get(IMAGES, "{}"), where), f"{path}: {IMAGES}")
    classes = named_classes(names, config, f"{path}: {CLASSES}")
    shapes = flatten(family(config).parameter_shapes(config))
    entries = [Entry(name, SAME, [name], [shape]) for name, shape in shapes.items()]
    return Weights(config, nested(to_ours("file", arrays, entries)), about, classes, images)


def write_file(path: Path, weights: Weights) -> None:
    """Writes the weights as one file."""
    write_safetensors(path, flatten(weights.params), metadata_of(weights))


def metadata_of(weights: Weights) -> dict[str, str]:
    known = {CLASSES: weights.classes, IMAGES: dict(weights.images)}
    about = {ABOUT: json.dumps(dict(weights.about)), VERSION: json.dumps(version())}
    about |= {name: json.dumps(value) for name, value in known.items() if value}
    return {MODEL: json.dumps(described(weights.config)), **about}


def _nothing_given(given: Any, what: str) -> None:
    """Raises ConfigError if the user describes a model that already has a description, or sets a step for a file."""
    if given.model is not None or given.arguments is not None or given.fields:
        raise ConfigError(f"model, arguments, set: {what} describes its own model; omit these options")
    if given.step is not None and what != "a run":
        raise ConfigError(f"step={given.step!r}: {what} has no steps")
