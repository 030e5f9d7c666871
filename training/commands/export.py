"""The command `moespec export`, and the metadata of an exported program."""

import importlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from moespec.models.checks import check_installed, check_output
from moespec.models.families import family, fewest_images
from moespec.models.files import write_atomically
from moespec.models.model import Model
from moespec.models.options import option
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import Stored
from moespec.training.commandline.parse import parse
from moespec.training.commands.convert import ConvertArguments, convert_command
from moespec.training.loop.resolve import load_backend
from moespec.training.weights.formats import Given, read
from moespec.training.weights.loading import Loaded
from moespec.training.weights.own import IMAGES, metadata_of
from moespec.training.weights.record import Weights

__all__ = ["FORMATS", "export_command", "main"]

DESCRIPTION = ".json"
"""Suffix of a second file with the metadata of a StableHLO program, since the program file cannot store metadata."""
LARGEST = 2**31 - 2**20
"""Maximum size of the parameters in bytes: a protobuf message (ONNX) or a flat buffer (StableHLO) holds fewer than 2^31 bytes."""


@dataclass(frozen=True, kw_only=True)
class ExportArguments(Stored):
    """Export a model as a program that runs without moespec.

    moespec export runs/x --format onnx. The input of the program is a batch of float32 images with axes (images, height, width, channels),
    normalised as in training. Any batch size is possible unless the router groups images; then the batch size must be a multiple of the
    group size. The output of the program is the logits. onnx: opset 18, for onnxruntime and others. pt2: for torch.export.load.
    stablehlo: for jax.export.deserialize on CPU, CUDA and TPU. safetensors: only the parameters, in the format of `moespec convert`.
    """

    source: Path = option(positional=True)
    """model to export: a run, a file written by moespec convert, a Hugging Face hub folder, or another file that describes its model"""
    format: Literal["onnx", "stablehlo", "pt2", "safetensors"]
    """format to write"""
    out: Path | None = None
    """file to write (default: the name of the source with the suffix of the format, in the working directory)"""


def main(words: list[str]) -> None:
    """Runs the command."""
    given = parse("export", ExportArguments, words)
    export_command(given.source, format=given.format, out=given.out, step=given.step)


class Format(NamedTuple):
    """An export format: a function that returns file contents by suffix, and the backend and the packages that this function needs."""

    write: Callable[[Weights, dict[str, str]], dict[str, bytes]]
    backend: str
    packages: tuple[str, ...] = ()


def export_command(source: Path, *, format: str, out: Path | None, step: int | str | None) -> None:
    """Exports the model of a run, or of a weight file that describes its model, as a program.

    Before the source is read, raises ConfigError for a missing package and RunError for a file that cannot be written.
    """
    target = out or Path(f"{source.stem if source.is_file() else source.resolve().name}.{format}")
    kind = FORMATS[format]
    check_output("out", target, [f".{format}"], [source])
    if format == "stablehlo":
        check_output("out", target.with_name(f"{target.name}{DESCRIPTION}"))
    if kind is None:
        convert_command(ConvertArguments(source, target, to_format="moespec", step=step))
        return
    for package in kind.packages:
        check_installed(f"format={format!r}", package, f"export,{kind.backend}")
    load_backend(kind.backend)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        weights = read(source, Given(step=step))
    for note in notes:
        print(f"note: {note.message}")
    if getattr(weights.config, "whole_batch", False):
        why = "the model routes each batch as one group, but a program has groups of fixed size"
        raise ConfigError(f"format={format!r}: {why}; train with group_size and group_images, or export safetensors")
    if format != "pt2" and 4 * (count := family(weights.config).parameter_count(weights.config)) > LARGEST:
        raise ConfigError(f"format={format!r}: {count:,} parameters exceed the 2 GB limit of this format; use pt2")
    if format == "onnx" and weights.config.dtype != "float32":
        print("note: the program computes in float32, since ONNX runtimes lack bfloat16 operators on a CPU")
        weights = replace(weights, config=replace(weights.config, dtype="float32"))
    files = kind.write(weights, metadata(weights))
    for suffix in sorted(files, key=len, reverse=True):  # longest name first: if it is too long, nothing is written
        write_atomically(target.with_name(target.name + suffix), files[suffix])
    config, multiple = weights.config, fewest_images(weights.config)
    batch = "any batch" if multiple == 1 else f"a batch that is a multiple of {multiple}"
    if multiple > 1 and format == "pt2":
        batch += f", from {2 * multiple} on"  # torch would fix the batch size of a program exported with one group
    size = " x ".join(str(length) for length in config.input_shape)
    print(f"{source} -> {target} ({format}): images ({batch}, {size}) float32 -> {config.classes} logits")


def metadata(weights: Weights) -> dict[str, str]:
    """Returns the metadata that moespec's weight files contain (`moespec.training.weights.own`), and `moespec.images`, each as JSON.

    `moespec.images` gives the axes, shape and dtype of the input, the number that must divide the batch size, and `Weights.images` if
    known. The input for pixels x is `(x / white - mean) / std`.
    """
    config = weights.config
    images = {
        "axes": ["images", "height", "width", "channels"],
        "shape": ["batch", *config.input_shape],
        "dtype": "float32",
        "batch_multiple_of": fewest_images(config),
    }
    return {**metadata_of(weights), IMAGES: json.dumps({**images, **weights.images})}


def _loaded(weights: Weights, backend: str) -> Loaded:
    B = load_backend(backend)
    return Loaded(Model("exported", weights.config, B), B.from_numpy(weights.params))


def _of_torch(name: str, weights: Weights, about: dict[str, str]) -> dict[str, bytes]:
    B: Any = load_backend("torch")
    example = B.from_numpy(np.zeros((1, *weights.config.input_shape), np.float32))
    more: Any = {"metadata": about, "multiple": fewest_images(weights.config)}
    return {"": getattr(B, name)(_loaded(weights, "torch").module().eval(), example, **more)}


def _stablehlo(weights: Weights, about: dict[str, str]) -> dict[str, bytes]:
    model, params = _loaded(weights, "jax")

    def logits(images: Any) -> Any:
        output = model.forward(params, images)
        return output.features if output.logits is None else output.logits

    module: Any = importlib.import_module("moespec.backends.jax.export")
    content = module.stablehlo_bytes(logits, weights.config.input_shape, multiple=fewest_images(weights.config))
    # A StableHLO artifact cannot store metadata, so a second file stores the metadata.
    return {"": content, DESCRIPTION: (json.dumps(about, indent=1) + "\n").encode()}


FORMATS: dict[str, Format | None] = {
    "onnx": Format(partial(_of_torch, "export_onnx"), "torch", ("onnx", "onnxscript")),
    "stablehlo": Format(_stablehlo, "jax", ("flatbuffers",)),
    "pt2": Format(partial(_of_torch, "export_pt2"), "torch"),
    "safetensors": None,  # `moespec convert` writes this format
}
"""Export formats by name. The name of a format is also its file extension."""
