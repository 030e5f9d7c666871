"""Detects the format of weights, and reads and writes weights in each format.

Files of other projects contain no moespec configuration. Sizes are inferred from the shapes of the parameters. All other fields
come from `Given`: the project's description of the model, and fields that the user sets.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from moespec.models import families
from moespec.models.errors import CheckpointError
from moespec.models.files import read_json
from moespec.models.mixer import MixerConfig
from moespec.models.pytrees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError, SpecError
from moespec.training import interop
from moespec.training.interop.layouts import Project, unwrapped
from moespec.training.interop.sizes import mixer_sizes, vit_sizes
from moespec.training.weights import hub, own
from moespec.training.weights.files import read_npz, read_safetensors, write_npz, write_safetensors
from moespec.training.weights.record import Weights, of_description, with_fields
from moespec.training.weights.vmoe_files import (
    is_vmoe_checkpoint,
    prefix_of,
    read_vmoe_checkpoint,
    write_vmoe_checkpoint,
)

__all__ = ["FORMATS", "Format", "Given", "format_of", "read", "write"]

PT = {"format": "pt"}
"""The metadata in safetensors files of torch-based projects."""


@dataclass(frozen=True)
class Given:
    """The user's description of a model whose file contains no description: see `moespec convert --help`."""

    model: str | None = None
    arguments: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    step: int | str | None = None


class Format(NamedTuple):
    """The functions that read and write a format. A read-only format has no `write`."""

    read: Callable[[Path, Given], Weights]
    write: Callable[[Path, Weights], None] | None


def read(path: Path, given: Given, name: str | None = None) -> Weights:
    """Reads the weights at `path` in the format `name`. By default, `format_of` determines the format.

    Raises CheckpointError for damaged files, ConfigError for parameters that do not fit the model, and ShapeError and DtypeError for
    parameters with a wrong shape or dtype. Each error names the file.
    """
    chosen = FORMATS[name or format_of(path)]
    try:
        return chosen.read(path, given)
    except SpecError as error:
        raise type(error)(f"{error}" if str(path) in str(error) else f"{path}: {error}") from error


def write(path: Path, weights: Weights, name: str) -> None:
    """Writes the weights to `path` in the format `name`. Raises ConfigError if the format is read-only or does not support the model."""
    chosen = FORMATS[name]
    if chosen.write is None:
        raise ConfigError(f"to={name!r}: this format can only be read")
    chosen.write(path, weights)


def format_of(path: Path) -> str:
    """The format of a file or folder, detected from its content. Raises CheckpointError for an unknown format."""
    if path.is_dir():
        if (path / "config.toml").is_file():
            return "run"
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path}: expected a run (config.toml) or a hub folder (config.json)")
        description = read_json(path / "config.json")
        kind = description.get("model_type")
        if kind in ("moespec", "vit"):
            return {"moespec": "hub", "vit": "huggingface"}[kind]
        if "architecture" in description:
            return "timm"
        raise CheckpointError(f"{path / 'config.json'}: model_type={kind!r}: expected 'moespec', 'vit' or a timm model")
    if is_vmoe_checkpoint(path):
        return "vmoe"
    if path.suffix == ".npz":
        return _told(path, read_npz(path))
    try:
        arrays, metadata = read_safetensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; expected a run, a hub folder, .safetensors or .npz") from error
    return "moespec" if own.MODEL in metadata else _told(path, arrays)


MARKS = {
    "patch_embed.proj.weight": "timm",
    "vit.embeddings.patch_embeddings.projection.weight": "huggingface",
    "embeddings.patch_embeddings.projection.weight": "huggingface",
    "Encoder/encoder_norm/scale": "vmoe",
    "stem/kernel": "vision_transformer",
    "Transformer/posembed_input/pos_embedding": "vision_transformer",
    "Transformer/encoder_norm/scale": "big_vision",
}
"""Name of a parameter -> the format of files that contain this parameter. If several match, the first counts."""


def _told(path: Path, arrays: Mapping[str, Any]) -> str:
    names = flatten(unwrapped(nested(arrays)))
    for mark, name in MARKS.items():
        if mark in names:
            return name
    raise CheckpointError(f"{path}: unknown format; the file contains {', '.join(sorted(names)[:3]) or 'nothing'}, ...")


def _vit(project: Project, arrays: Mapping[str, Any], given: Given) -> VitConfig:
    """Returns the configuration of another project's ViT: sizes come from the shapes, all other fields from the user's description."""
    sizes = vit_sizes(project, _shapes(arrays))
    if given.model is not None:
        named = _of_model(project is interop.TIMM, given.model)
        wrong = {name: value for name, value in sizes.items() if name in _SHOWN and getattr(named, name) != value}
        if wrong:
            name, value = next(iter(wrong.items()))
            raise ConfigError(f"model={given.model!r} has {name}={getattr(named, name)!r}, the weights have {value!r}")
        return with_fields(named, {**sizes, **given.fields}, "set")
    if project is interop.TIMM and (assumed := [name for name in ("norm_epsilon", "gelu") if name not in given.fields]):
        default = "timm's defaults are used (1e-6, 'erf'); for CLIP models, set --model"
        warnings.warn(f"{' and '.join(assumed)}: cannot be inferred from the weights; {default}", stacklevel=2)
    values = {**sizes, **given.fields}
    for name, advice in _ASKED.items():
        if name not in values:
            raise ConfigError(f"{name}: cannot be inferred from the weights; {advice}")
    return cast(VitConfig, of_description({"family": "vit", **values}, "set"))


def _of_model(timm: bool, name: str) -> VitConfig:
    """Returns the configuration of the ViT `name`. If `timm` is true, `name` may be a timm name."""
    if timm and name in interop.models_of_timm():
        return interop.config_from_timm(interop.models_of_timm()[name])
    try:
        named = families.of_name(name).named(name)
    except ConfigError as error:
        if not timm:
            raise
        advice = "for other models, pass timm's arguments as JSON: --arguments FILE"
        raise ConfigError(f"model={name!r}: neither a moespec model nor a timm ViT; {advice}") from error
    if not isinstance(named, VitConfig):
        raise ConfigError(f"model={name!r}: expected a ViT")
    return named


_SHOWN = ("width", "depth", "hidden", "patch_size", "heads")
_ASKED = {
    "heads": "pass --set heads=6 or --model vit_s16",
    "image_size": "pass --set image_size=224",
    "positions": "pass --set positions=sincos2d, or another value of VitConfig.positions",
}


def _weights(
    project: Project, path: Path, arrays: Mapping[str, Any], config: Any, classes: Sequence[str] = ()
) -> Weights:
    """Converts another project's parameters, by name, to this project's weights."""
    tree = nested(arrays) if project.separator == "/" else arrays
    about = {"Source": f"{project.name}, {path.name}"}
    return Weights(config, project.from_theirs(tree, config), about, tuple(classes))


def _read_timm(path: Path, given: Given) -> Weights:
    file, arguments = path, given.arguments
    if path.is_dir():
        file, description = path / "model.safetensors", read_json(path / "config.json")
        arguments = arguments or interop.timm_arguments(description)
    arrays, _ = read_safetensors(file)
    config = (
        _vit(interop.TIMM, arrays, given) if arguments is None else _with(interop.config_from_timm(arguments), given)
    )
    return _weights(interop.TIMM, path, arrays, config)


def _read_huggingface(path: Path, given: Given) -> Weights:
    folder = path if path.is_dir() else path.parent
    arrays, _ = read_safetensors(folder / "model.safetensors" if path.is_dir() else path)
    description = given.arguments or read_json(folder / "config.json")
    bias, pooler = (arrays.get(name) for name in ("classifier.bias", "pooler.dense.bias"))
    classes, representation = (0 if array is None else len(array) for array in (bias, pooler))
    described = interop.config_from_huggingface(description, classes=classes, representation=representation)
    config = _with(described, given)
    return _weights(interop.HUGGINGFACE, path, arrays, config, _labels(description, config.classes))


def _labels(description: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """The class names in transformers' config.json; empty if the names are placeholders or do not match the number of classes."""
    labels = description.get("id2label")
    if not isinstance(labels, Mapping):
        return ()
    names = tuple(name for label in range(classes) if isinstance(name := labels.get(str(label)), str))
    placeholders = tuple(f"LABEL_{label}" for label in range(classes))
    return names if len(names) == len(labels) == classes and names != placeholders else ()


def _write_huggingface(path: Path, weights: Weights) -> None:
    arrays = interop.to_huggingface(weights.params, weights.config)
    description = interop.config_to_huggingface(cast(VitConfig, weights.config))  # checked by `to_huggingface`
    if weights.classes:
        del description["num_labels"]
        description |= hub.labels(weights.classes)
    hub.write_folder(path, {"config.json": description}, arrays, PT)


def _read_vmoe(path: Path, given: Given) -> Weights:
    arrays = _params(read_npz(path)) if path.suffix == ".npz" else read_vmoe_checkpoint(path)
    if given.arguments is not None:
        size = given.fields.get("image_size") or vit_sizes(interop.VMOE, _shapes(arrays)).get("image_size")
        if size is None:
            raise ConfigError(f"image_size: cannot be inferred from the weights; {_ASKED['image_size']}")
        config = _with(interop.config_from_vmoe(given.arguments, image_size=size), given)
    elif any("/Moe/" in name for name in arrays) and "router" not in given.fields:
        advice = "pass --arguments FILE, the JSON of vmoe's config.model, or --set for moe, router, experts, ..."
        raise ConfigError(f"the routers of the MoE blocks cannot be inferred from the weights: {advice}")
    else:
        config = _vit(interop.VMOE, arrays, given)
    return _weights(interop.VMOE, prefix_of(path), arrays, config)


def _write_vmoe(path: Path, weights: Weights) -> None:
    tree = interop.to_vmoe(weights.params, weights.config)
    if path.suffix == ".npz":
        write_npz(path, flatten(tree))
    else:
        write_vmoe_checkpoint(path, tree)


def _read_big_vision(path: Path, given: Given) -> Weights:
    arrays = interop.BIG_VISION.prepared(_params(read_npz(path)))
    return _weights(interop.BIG_VISION, path, arrays, _vit(interop.BIG_VISION, arrays, given))


def _read_vision_transformer(path: Path, given: Given) -> Weights:
    arrays = interop.VISION_TRANSFORMER.prepared(_params(read_npz(path)))
    if "stem/kernel" in arrays:
        config = _with(MixerConfig(**mixer_sizes(_shapes(arrays))), given)
    else:
        config = _vit(interop.VISION_TRANSFORMER, arrays, given)
    return _weights(interop.VISION_TRANSFORMER, path, arrays, config)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in arrays.items()}


def _params(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters by name. If a file has other content too, its parameters are in `params` or, in old files, in `opt/target`."""
    tree: Any = nested(arrays)
    if isinstance(tree.get("opt"), Mapping) and isinstance(tree["opt"].get("target"), Mapping):
        tree = tree["opt"]["target"]
    return flatten(unwrapped(tree))


def _with(config: Any, given: Given) -> Any:
    if given.model is not None:
        raise ConfigError(f"model={given.model!r}: the file or --arguments already define the model; omit model")
    return with_fields(config, given.fields, "set")


FORMATS: Mapping[str, Format] = {
    "run": Format(own.read_run, None),
    "moespec": Format(own.read_file, own.write_file),
    "hub": Format(hub.read, hub.write),
    "vmoe": Format(_read_vmoe, _write_vmoe),
    "big_vision": Format(
        _read_big_vision,
        lambda path, of: write_npz(path, flatten({"params": interop.to_big_vision(of.params, of.config)})),
    ),
    "vision_transformer": Format(
        _read_vision_transformer,
        lambda path, of: write_npz(path, flatten(interop.to_vision_transformer(of.params, of.config))),
    ),
    "timm": Format(_read_timm, lambda path, of: write_safetensors(path, interop.to_timm(of.params, of.config), PT)),
    "huggingface": Format(_read_huggingface, _write_huggingface),
}
"""Formats by name; docs/weights.md describes each."""
