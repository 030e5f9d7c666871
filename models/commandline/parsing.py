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

__all__ = ["parse", "word_after"]

Arguments = TypeVar("Arguments")


def parse(prog: str, kind: type[Arguments], arguments: Sequence[str], **options: Any) -> Arguments:
    """The arguments of the command `prog` as a dataclass; --help ends the process.

    Raises SpecError in one line for an option or a word that there is not, that is missing, or that cannot have its value.
    """

    def told(event: Any) -> None:
        if say := _SAID.get(type(event).__name__):
            raise ConfigError(say(event, arguments, lambda: _flags(kind, options.get("default"))))

    hook: Callable[..., Any] = getattr(getattr(tyro, "_errors", None), "on_parse_error", nullcontext)
    with hook(told):
        parsed: Arguments = tyro.cli(kind, prog=prog, args=arguments, **options)
    return parsed


def word_after(arguments: Sequence[str], flags: Sequence[str]) -> str:
    """What the last of the flags on a command line is given: the words up to the next flag."""
    found = ""
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in flags:
            following = arguments[place + 1 :]
            end = next((i for i, each in enumerate(following) if each.startswith("--")), len(following))
            found = value if equals else " ".join(following[:end])
    return found


def _name(argument: Any) -> str:
    """The dotted name of an argument, as configuration files and other messages have it."""
    flag = max(argument.lowered.name_or_flags, key=len)
    return str(flag).removeprefix("--").replace("-", "_")


def _value(event: Any, arguments: Sequence[str], _: Any) -> str:
    argument = event.argument
    if argument is None:  # of a section's own checks, which do not all say of which section they are
        place = str(getattr(sys.exc_info()[1], "arg", "")).removeprefix("settings").strip(".")
        known = place and not event.message.startswith(place)
        return f"{place}.{event.message}" if known else str(event.message)
    value = word_after(arguments, argument.lowered.name_or_flags)
    return f"{_name(argument)}={value!r}: expected {described(argument.field.type_stripped)}"


def _choice(event: Any, *_: Any) -> str:
    return f"{_name(event.argument)}={event.value!r}: expected {described(event.argument.field.type_stripped)}"


def _without(event: Any, *_: Any) -> str:
    return f"{_name(event.argument)}: its value is missing"


def _missing(event: Any, *_: Any) -> str:
    fields = [(_name(each.arg), each.arg.field.helptext) for each in event.missing_arguments]
    texts = [f"{name} is missing ({text() if callable(text) else text})" for name, text in fields]
    return f"{event.prog.removeprefix('moespec ')}: {'; '.join(texts)}"


def _unknown(event: Any, arguments: Sequence[str], flags: Callable[[], Sequence[str]]) -> str:
    word = next((token for token in event.tokens if token.startswith("-")), None)
    if word is None:
        word = event.tokens[0]
        before = arguments[: list(arguments).index(word)][-1:]
        return f"{word!r}: not expected here{f', after {before[0]}' if before else ''}"
    near = difflib.get_close_matches(word, flags(), n=3)
    return f"{word}: there is no such option{'; near it: ' if near else ''}{', '.join(near)}"


def _flags(kind: type[Any], default: Any) -> list[str]:
    """The options of a command: its own, and those of the configuration that it changes."""
    names = [*SHORT, "config"]
    for field in fields(kind):
        value = getattr(default, field.name, None)
        section = (
            {field.name: asdict(value)} if is_dataclass(value) and not isinstance(value, type) else {field.name: None}
        )
        names += [name.removeprefix("settings.") for name in flat(section)]
    return [f"--{name.replace('_', '-')}" for name in names]


_SAID: dict[str, Callable[..., str]] = {
    "InstantiationFailure": _value,
    "InvalidChoice": _choice,
    "BadValue": _without,
    "MissingArgs": _missing,
    "UnrecognizedArgs": _unknown,
}
"""Event of tyro -> what is said of it."""
