"""What a command line chooses before it is parsed, and which options it writes: the configuration's file, model and router.

A router has options of its own, so which options there are to parse, and to show, depends on the router.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from moespec.backends.optimizer_options import OPTIMIZERS
from moespec.models.router_options import RouterSection
from moespec.models.training import concerns, configfile
from moespec.models.training.config import Config
from moespec.models.training.displaced import displaced
from moespec.spec.errors import ConfigError

__all__ = ["SHORT", "check_concerns", "chosen"]

_DISPLACING = re.compile(r"--(optimizer|training)\.(name|steps|epochs|examples)(?:=(.*))?", re.DOTALL)
SHORT = {"model": "model.name", "data": "data.name", "codes": "model.codes"}
SHORT |= {name: f"model.{name}" for name in ("router", "experts")}
"""Options that have a short name, too: that name, and the field."""
_OPTION = re.compile(r"--model\.router[-_]options\.([\w-]+)(?:=(.*))?", re.DOTALL)


def chosen(arguments: Sequence[str], default: Config) -> Config:
    """The configuration that the options of the command line change: of a file, of a run that goes on, or `default`.

    It has the model and the router of the command line. Raises ConfigError for a file that cannot be used, and for an
    option that this router does not have, or a value that it cannot have.
    """
    known = _early(arguments)
    saved = Path(known.run or "") / "config.toml"
    if known.config:
        base = configfile.read(configfile.find_recipe(known.config), default, model=known.model, router=known.router)
    elif known.resume and known.run and isfile(saved):
        base = configfile.read(saved, model=known.model, router=known.router)
    else:
        base = default
        model = replace(base.model, name=known.model or base.model.name, router=known.router or base.model.router)
        base = replace(base, model=model)
    _check(arguments, base.model.router_options)
    return _with_displaced(base, arguments)


def check_concerns(arguments: Sequence[str], *configs: Config) -> None:
    """ConfigError for an option of the command line, or of its file, that concerns none of the configurations made of it.

    One of a file may concern the file's own configuration, and init_skip the weights that it is used with later. A file that a
    run wrote has every field, and is not looked at.
    """
    words = (word.partition("=")[0][2:].replace("-", "_") for word in arguments if word.startswith("--"))
    concerns.check([SHORT.get(word, word) for word in words], *configs)
    if (known := _early(arguments)).config:
        path = configfile.find_recipe(known.config)
        if "format" not in (written := configfile.written(path)):
            concerns.check(
                (name for name in written if name != "init_skip"),
                configfile.read(path, model=known.model, router=known.router),
                *configs,
            )


def _early(arguments: Sequence[str]) -> argparse.Namespace:
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--config",), ("--run",), ("--model", "--model.name"), ("--router", "--model.router")):
        early.add_argument(*names, nargs="?")  # that a value is missing is said by the parser that comes after
    early.add_argument("--resume", action="store_true")
    known, _ = early.parse_known_args([argument for argument in arguments if argument not in ("-h", "--help")])
    known.router = None if known.router == "None" else known.router
    return known


def _with_displaced(base: Config, arguments: Sequence[str]) -> Config:
    """The configuration with the optimiser and the length of the command line in place of those that it has."""
    given: dict[str, dict[str, Any]] = {"optimizer": {}, "training": {}}
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if match := _DISPLACING.fullmatch(argument):
            given[match[1]][match[2]] = _value(following if match[3] is None else match[3])
    name, lengths = given["optimizer"].get("name"), given["training"]
    if name in OPTIMIZERS:
        base = replace(base, optimizer=_in_place(base.optimizer, {"name": name}))
    if any(isinstance(value, int | float) for value in lengths.values()):
        base = replace(base, training=_in_place(base.training, lengths))
    return base


def _in_place(section: Any, given: dict[str, Any]) -> Any:
    return replace(section, **{**displaced(section, given), **given})


def _check(arguments: Sequence[str], options: RouterSection) -> None:
    """ConfigError for an option that the router does not have, or a value that it cannot have."""
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if (name := argument.partition("=")[0]) in ("--data.size", "--data.image-size"):
            raise ConfigError(f"{name} is not an option; the height and width of the images is --model.image-size")
        if match := _OPTION.fullmatch(argument):
            options.check(match[1].replace("-", "_"), _value(following if match[2] is None else match[2]))


def _value(text: str) -> Any:
    """The value that a word of the command line stands for."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
