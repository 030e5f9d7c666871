"""A command line as a dataclass, by tyro. What is wrong with it is said as of any other error: in one line, with name and value.

Where tyro does not tell what it found, or what it tells is not known here, tyro's own words are printed.
"""

import math
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
from tyro.conf import Suppress, arg

from moespec.models.checks import check_names, described
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it
from moespec.training.commandline.private import on_parse_error
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import flat
from moespec.training.configuration.modelconfig import SHORT
from moespec.training.configuration.option_constraints import unconcerned

__all__ = ["Settings", "parse"]

Arguments = TypeVar("Arguments")
PLACES = ("--run", "--image", "--out", "--csv", "--html", "--config", "--arguments")
"""Options that an empty text is no value of, though it may be one of a path."""


@dataclass(frozen=True)
class Settings:
    """The options of the configuration of a run, and no others."""

    settings: Annotated[Config, arg(name="")]


def parse(prog: str, kind: type[Arguments], arguments: Sequence[str], **options: Any) -> Arguments:
    """The arguments of the command `prog` as a dataclass; --help ends the process.

    Raises ConfigError for an option or a word that there is not, that is missing, or that cannot have its value.
    """

    def told(event: Any) -> None:
        if said := _said(event, arguments, kind, options.get("default")):
            raise ConfigError(said)

    _check_numbers(arguments)
    for before, word in pairwise(["", *arguments]):
        flag, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if not value and ("=" in word or not word) and (not flag.startswith("--") or flag in PLACES):
            raise ConfigError(
                f"{flag if flag in PLACES else prog.partition(' ')[2]}: '' is no path; an empty variable of the shell?"
            )
    if {"-h", "--help"} & set(arguments) and hasattr(default := options.get("default"), "settings"):
        options["default"] = _for_help([word for word in arguments if word not in ("-h", "--help")], default)
    with on_parse_error(told):
        parsed: Arguments = tyro.cli(kind, prog=prog, args=arguments, **options)
    return parsed


def _check_numbers(arguments: Sequence[str]) -> None:
    """ConfigError for a number that becomes infinite, which some options may be, but not unsaid."""
    for name, text in pairwise(part for word in arguments for part in word.split("=", 1)):
        if re.fullmatch(r"[+-]?\d+(\.\d*)?(e\+?\d+)?", text, re.IGNORECASE) and math.isinf(float(text)):
            raise ConfigError(f"{name.lstrip('-').replace('-', '_')}={text}: expected a finite number, or inf")


def _for_help(arguments: Sequence[str], default: Any) -> Any:
    """The defaults of a command, as the rest of the command line changes them, without what concerns nothing then."""
    settings: Config = default.settings
    with suppress(ConfigError):  # a mistake is reported where no help is requested
        if arguments:  # reading none takes as long as the help itself
            parsed: Any = parse("", Settings, arguments, default=Settings(settings), return_unknown_args=True)
            settings = parsed[0].settings
    return replace(default, settings=_hiding(settings, unconcerned(settings)))


def _hiding(section: Any, names: Collection[str]) -> Any:
    """A section of a configuration, some of whose fields (dotted names) help does not show."""
    own, hints = {name for name in names if "." not in name}, get_type_hints(type(section), include_extras=True)
    values = dict(vars(section))
    for part in {name.partition(".")[0] for name in names} - own:
        values[part] = _hiding(values[part], [name.partition(".")[2] for name in names if name.startswith(f"{part}.")])
    members = [(name, Annotated[hints[name], Suppress], field(default=None)) for name in own if name in hints]
    title, namespace = type(section).__name__, {"__doc__": type(section).__doc__}
    made: Any = object.__new__(make_dataclass(title, members, bases=(type(section),), frozen=True, namespace=namespace))
    vars(made).update(values)
    return made


def _said(event: Any, arguments: Sequence[str], kind: Any, default: Any) -> str | None:
    argument: Any = getattr(event, "argument", None)
    match type(event).__name__:
        case "InstantiationFailure" if argument is None:  # of a section's own checks; not all say which section it is
            place = str(getattr(sys.exc_info()[1], "arg", "")).removeprefix("settings").strip(".").replace("-", "_")
            return f"{place}.{event.message}" if place and not event.message.startswith(place) else str(event.message)
        case "InstantiationFailure" | "InvalidChoice":
            value = getattr(event, "value", None) or _words_after(argument.lowered.name_or_flags, arguments)
            return f"{_name(argument)}={value!r}: expected {described(argument.field.type_stripped)}"
        case "BadValue":
            return f"{_name(argument)}: its value is missing"
        case "MissingArgs":
            texts = [(_name(each.arg), each.arg.field.helptext) for each in event.missing_arguments]
            said = [f"{name} is missing ({text() if callable(text) else text})" for name, text in texts]
            return f"{event.prog.removeprefix('moespec ')}: {'; '.join(said)}"
        case "UnrecognizedArgs":
            if option := next((token for token in event.tokens if token.startswith("-")), None):
                _check_owned(option, arguments, default)
                return f"{option}: there is no such option{near_it(option, _options(kind, default))}"
            if flag := next((token for token in arguments if token.endswith(f"={event.tokens[0]}")), None):
                return f"{flag}: a switch takes no value"
            before = arguments[: list(arguments).index(event.tokens[0])][-1:]
            return f"{event.tokens[0]!r}: not expected here{f', after {before[0]}' if before else ''}"
    return None


def _check_owned(option: str, arguments: Sequence[str], default: Any) -> None:
    """ConfigError for an option that the model or the router does not have."""
    word = option.partition("=")[0].lstrip("-").replace("-", "_")
    section, _, name = SHORT.get(word, word).rpartition(".")
    own: Any = getattr(default, "settings", default)
    for part in section.split("."):
        own = getattr(own, part, None)
    if own is not None and hasattr(own, "owner"):
        value = _number(_words_after([f"--{word.replace('_', '-')}"], arguments))
        check_names(f"{section}.", {name: value}, own.owner, vars(own))


def _number(text: str) -> int | float | str:
    """The number that a word is, or the word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _name(argument: Any) -> str:
    """The dotted name of an argument, as configuration files and other messages have it."""
    return str(max(argument.lowered.name_or_flags, key=len)).removeprefix("--").replace("-", "_")


def _words_after(flags: Sequence[str], arguments: Sequence[str]) -> str:
    """What the last of the flags on a command line is given, or without one of them all up to the next."""
    words = list(arguments)
    place = max((i for i, word in enumerate(words) if word.partition("=")[0].replace("_", "-") in flags), default=-1)
    if place >= 0 and "=" in words[place]:
        return words[place].partition("=")[2]
    end = next((i for i, word in enumerate(words[place + 1 :], place + 1) if word.startswith("--")), len(words))
    return " ".join(words[place + 1 : end])


def _options(kind: Any, default: Any) -> list[str]:
    """The options of a command: its own, and those of the configuration that it changes."""
    values = {field.name: getattr(default, field.name, None) for field in fields(kind)}
    own = flat({name: asdict(value) if is_dataclass(value) else value for name, value in values.items()})  # type: ignore[arg-type]
    return [f"--{name.removeprefix('settings.').replace('_', '-')}" for name in (*SHORT, "config", *own)]
