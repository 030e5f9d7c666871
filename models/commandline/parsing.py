"""A command line as a dataclass, by tyro. What is wrong with it is said as of any other error: in one line, with name and value.

tyro tells what it found through a hook of its module `_errors`, which is not public: where that is missing, or what it
tells is not known here, tyro's own words are printed.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

import tyro

from moespec.models.checks import described
from moespec.models.commandline.chosen import SHORT
from moespec.models.training.configfile import flat
from moespec.spec.errors import ConfigError

__all__ = ["parse"]

Arguments = TypeVar("Arguments")


def parse(prog: str, kind: type[Arguments], arguments: Sequence[str], **options: Any) -> Arguments:
    """The arguments of the command `prog` as a dataclass; --help ends the process.

    Raises ConfigError for an option or a word that there is not, that is missing, or that cannot have its value.
    """

    def told(event: Any) -> None:
        if said := _said(event, arguments, kind, options.get("default")):
            raise ConfigError(said)

    hook: Callable[..., Any] = getattr(getattr(tyro, "_errors", None), "on_parse_error", nullcontext)
    with hook(told):
        parsed: Arguments = tyro.cli(kind, prog=prog, args=arguments, **options)
    return parsed


def _said(event: Any, arguments: Sequence[str], kind: Any, default: Any) -> str | None:
    argument: Any = getattr(event, "argument", None)
    match type(event).__name__:
        case "InstantiationFailure" if argument is None:  # of a section's own checks; not all say which section it is
            place = str(getattr(sys.exc_info()[1], "arg", "")).removeprefix("settings").strip(".")
            return f"{place}.{event.message}" if place and not event.message.startswith(place) else str(event.message)
        case "InstantiationFailure" | "InvalidChoice":
            value = _words_after(argument.lowered.name_or_flags, arguments)
            return f"{_name(argument)}={value!r}: expected {described(argument.field.type_stripped)}"
        case "BadValue":
            return f"{_name(argument)}: its value is missing"
        case "MissingArgs":
            texts = [(_name(each.arg), each.arg.field.helptext) for each in event.missing_arguments]
            said = [f"{name} is missing ({text() if callable(text) else text})" for name, text in texts]
            return f"{event.prog.removeprefix('moespec ')}: {'; '.join(said)}"
        case "UnrecognizedArgs":
            if option := next((token for token in event.tokens if token.startswith("-")), None):
                near = ", ".join(difflib.get_close_matches(option, _options(kind, default)))
                return f"{option}: there is no such option{f'; near it: {near}' if near else ''}"
            before = arguments[: list(arguments).index(event.tokens[0])][-1:]
            return f"{event.tokens[0]!r}: not expected here{f', after {before[0]}' if before else ''}"
    return None


def _name(argument: Any) -> str:
    """The dotted name of an argument, as configuration files and other messages have it."""
    return str(max(argument.lowered.name_or_flags, key=len)).removeprefix("--").replace("-", "_")


def _words_after(flags: Sequence[str], arguments: Sequence[str]) -> str:
    """What the last of the flags on a command line is given, or without one of them the last word."""
    words = list(arguments)
    place = max((i for i, word in enumerate(words) if word.partition("=")[0].replace("_", "-") in flags), default=-2)
    if "=" in words[place]:
        return words[place].partition("=")[2]
    end = next((i for i, word in enumerate(words[place + 1 :], place + 1) if word.startswith("--")), len(words))
    return " ".join(words[place + 1 : end])


def _options(kind: Any, default: Any) -> list[str]:
    """The options of a command: its own, and those of the configuration that it changes."""
    values = {field.name: getattr(default, field.name, None) for field in fields(kind)}
    own = flat({name: asdict(value) if is_dataclass(value) else value for name, value in values.items()})  # type: ignore[arg-type]
    return [f"--{name.removeprefix('settings.').replace('_', '-')}" for name in (*SHORT, "config", *own)]
