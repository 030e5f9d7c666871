"""The command `moespec convert`."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moespec.models.checks import check_output, check_sources
from moespec.models.families import family, fewest_images
from moespec.models.files import read_json
from moespec.models.options import option
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import Stored
from moespec.training.commandline.parse import parse
from moespec.training.weights.formats import FORMATS, Given, format_of, read, write

__all__ = ["convert_command", "fields_of", "main"]


@dataclass(frozen=True)
class ConvertArguments(Stored):
    """Convert weights between a run, a moespec file, a Hugging Face hub folder and other projects' files.

    moespec convert runs/x weights.safetensors; moespec convert runs/x hub/x --to hub; moespec convert timm.safetensors
    ours.safetensors --model vit_base_patch16_224. Formats: run, moespec, hub, vmoe, big_vision, vision_transformer, timm,
    huggingface. Sizes are inferred from the parameters; use --set for fields that cannot be inferred, such as heads. Values are
    copied exactly, so a file converted to another format and back has the same values.
    """

    source: Path = option(positional=True)
    """file or folder to read; for a vmoe checkpoint, its prefix"""
    target: Path = option(positional=True)
    """file or folder to write"""
    from_format: str | None = option(None, flags=("--from",))
    """format of the source (default: detected from the content)"""
    to_format: str | None = option(None, flags=("--to",))
    """format of the target (default: moespec if the name ends in .safetensors)"""
    model: str | None = None
    """model of the source: a moespec name (moespec list models), or a timm name for timm weights"""
    arguments: Path | None = None
    """JSON file that describes the source: vmoe's config.model, timm's model_args, transformers' config.json"""
    settings: tuple[str, ...] = option((), flags=("--set",), single=True)
    """set a field of the model, such as --set heads=6 --set gelu=tanh (repeatable)"""


def main(words: list[str]) -> None:
    """Runs the command."""
    convert_command(parse("convert", ConvertArguments, words))


def convert_command(given: ConvertArguments) -> None:
    """Reads weights in one format, writes them in another, and prints a description."""
    source, target, from_format, to_format = given.source, given.target, given.from_format, given.to_format
    for name, chosen in (("from", from_format), ("to", to_format)):
        if chosen is not None and chosen not in FORMATS:
            raise ConfigError(f"{name}={chosen!r}: expected one of {', '.join(FORMATS)}")
    if to_format is None and target.suffix != ".safetensors":
        writable = ", ".join(name for name, format in FORMATS.items() if format.write)
        raise ConfigError(f"target={str(target)!r}: expected NAME.safetensors, or --to with one of {writable}")
    to_format = to_format or "moespec"
    if to_format == "vmoe" and target.suffix in (".safetensors", ".npz"):
        raise ConfigError(f"target={str(target)!r}: remove the suffix; vmoe writes NAME.index and NAME.data-...")
    if to_format not in ("hub", "huggingface"):
        check_output("target", target, sources=[source])
    else:
        for path in (target, target / "model.safetensors"):
            check_sources("target", path, [source])
    request = Given(
        given.model, read_json(given.arguments) if given.arguments else None, fields_of(given.settings), given.step
    )
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        weights = read(source, request, from_format)
    for note in notes:
        print(f"note: {note.message}")
    write(target, weights, to_format)
    count, config = family(weights.config).parameter_count(weights.config), weights.config
    read_from = from_format or format_of(source)
    print(f"{source} ({read_from}) -> {target} ({to_format}): {count:,} parameters, {_words(config)}")


def fields_of(settings: Sequence[str]) -> dict[str, Any]:
    """Splits settings such as `heads=6` into a field and a value. A value is parsed as JSON if possible; otherwise, it is a string."""
    fields: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"set={setting!r}: expected FIELD=VALUE")
        try:
            fields[name] = json.loads(text)
        except ValueError:
            fields[name] = text
    return fields


def _words(config: Any) -> str:
    routers = " and ".join(
        dict.fromkeys(layer.router for layer in family(config).moe_layers(config, fewest_images(config)))
    )
    routed = f", router {routers} in blocks {config.moe}" if routers else ""
    return f"{config.image_size} x {config.image_size} pixels, {config.classes} classes{routed}"
