"""What the command `moespec convert` does. `moespec.training.cli` parses its arguments."""

import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from moespec.models.checks import check_output, check_sources
from moespec.models.families import family, fewest_images
from moespec.models.files import read_json
from moespec.spec.errors import ConfigError
from moespec.training.weights.average import average as averaged
from moespec.training.weights.formats import FORMATS, Given, format_of, read, write

__all__ = ["convert_command", "fields_of"]


def convert_command(
    paths: Sequence[Path],
    *,
    average: bool = False,
    from_format: str | None = None,
    to_format: str | None = None,
    model: str | None = None,
    arguments: Path | None = None,
    settings: Sequence[str] = (),
    step: int | None = None,
) -> None:
    """Converts weights from one format to another. paths: the source, or with `average` several, and the target."""
    if len(paths) < 2:
        missing = "target is missing (the file or folder to write, which comes last)"
        raise ConfigError(f"convert: {missing if paths else 'source is missing (the file or folder to read)'}")
    *sources, target = paths
    if len(sources) > 1 and not average:
        raise ConfigError(f"convert: {len(sources)} sources, {', '.join(map(str, sources))}; --average averages them")
    for name, chosen in (("from", from_format), ("to", to_format)):
        if chosen is not None and chosen not in FORMATS:
            raise ConfigError(f"{name}={chosen!r}: expected one of {', '.join(FORMATS)}")
    to_format = to_format or _by_name(target)
    if to_format == "vmoe" and target.suffix in (".safetensors", ".npz"):
        raise ConfigError(f"target={str(target)!r}: vmoe has two files, NAME.index and NAME.data-...; expected a NAME")
    if to_format not in ("hub", "huggingface"):
        check_output("target", target, sources=sources)
    else:
        for path in (target, target / "model.safetensors"):
            check_sources("target", path, sources)
    request = Given(model, read_json(arguments) if arguments else None, fields_of(settings), step)
    one = partial(read, given=request, name=from_format)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        weights = averaged(sources, one) if average else one(sources[0])
    for note in notes:
        print(f"note: {note.message}")
    write(target, weights, to_format)
    count, config = family(weights.config).parameter_count(weights.config), weights.config
    read_from = " + ".join(f"{source} ({from_format or format_of(source)})" for source in sources)
    print(f"{read_from} -> {target} ({to_format}): {count:,} parameters, {_words(config)}")


def fields_of(settings: Sequence[str]) -> dict[str, Any]:
    """`heads=6` as a field and its value, which is JSON or else a string."""
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


def _by_name(target: Path) -> str:
    """The format of a target without --to: moespec's own."""
    if target.suffix == ".safetensors":
        return "moespec"
    writable = ", ".join(name for name, format in FORMATS.items() if format.write)
    raise ConfigError(f"target={str(target)!r}: give --to, one of {writable}")


def _words(config: Any) -> str:
    routers = " and ".join(
        dict.fromkeys(layer.router for layer in family(config).moe_layers(config, fewest_images(config)))
    )
    routed = f", router {routers} in blocks {config.moe}" if routers else ""
    return f"{config.image_size} x {config.image_size} pixels, {config.classes} classes{routed}"
