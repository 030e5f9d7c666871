"""Parses a command line into a dataclass. The options are the fields of the dataclass and of its configuration sections.

argparse finds the options and prints the help. Values are converted to the fields' types as in a TOML file (`configfile.update`),
so an invalid value gives the same message in a file and on the command line.
"""

import argparse
import math
import shutil
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from moespec.models.checks import check_fields, check_names, described
from moespec.models.options import help_texts, no_effect
from moespec.models.router_options import RouterSection
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it
from moespec.spec.own import OwnName, is_own
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import update
from moespec.training.configuration.modelconfig import SHORT

__all__ = ["Settings", "options_of", "parse"]

Arguments = TypeVar("Arguments")
HELP = ("-h", "--help")
METAVARS = {int: "INT", float: "FLOAT", bool: "True|False", Path: "PATH", str: "TEXT", OwnName: "PACKAGE.MODULE:OBJECT"}


@dataclass(frozen=True, eq=False)
class Option:
    """One option of a command. name: the dotted name, as in a TOML file and in messages. place: the path of field names to the value.

    hidden: whether the help omits the option, because the option has no effect or is rarely set.
    """

    name: str
    place: tuple[str, ...]
    hint: Any
    default: Any
    kind: Any
    flags: tuple[str, ...]
    hidden: bool
    positional: bool
    single: bool

    @property
    def text(self) -> str:
        """The help text."""
        described = getattr(self.kind, "described_in", self.kind)
        texts: dict[str, str] = {**help_texts(described), **getattr(self.kind, "helps", {})}
        return texts.get(self.place[-1], "")

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that a value of the option may have."""
        if self.several:
            return get_args(self.hint)[:1]
        return get_args(self.hint) if get_origin(self.hint) in (Union, types.UnionType) else (self.hint,)

    @property
    def switch(self) -> bool:
        """Whether the option is a switch, which takes no value. A boolean option of a router is not a switch, but takes True or False."""
        return self.hint is bool and not issubclass(self.kind, RouterSection)

    @property
    def off(self) -> str:
        """The flag that sets a switch of the configuration to False."""
        section, dot, name = self.flags[-1].rpartition(".")
        return f"{section}.no-{name}" if self.switch and dot else ""

    @property
    def several(self) -> bool:
        """Whether the option takes several values."""
        return get_origin(self.hint) is tuple

    @property
    def metavar(self) -> str:
        """The placeholder for a value in the help."""
        kind = next(kind for kind in self.types if kind is not type(None))
        if get_origin(kind) is not Literal:
            return METAVARS[kind]
        words = f"{{{','.join(get_args(kind))}}}"
        return words if len(words) < 64 else "NAME"


def options_of(kind: Any, values: Any, place: tuple[str, ...] = (), config: Any = None) -> Iterator[Option]:
    """Yields the options of the dataclass `kind`, with defaults from the fields of `values`. Names omit the prefix `settings`.

    config: the configuration that contains the dataclass and determines which options have an effect.
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        at, value, hint = (*place, field.name), getattr(values, field.name, field.default), hints[field.name]
        if is_dataclass(value):
            yield from options_of(type(value), value, at, value if isinstance(value, Config) else config)
        elif get_origin(hint) is not Mapping:  # only a file can contain tables with user-defined names
            name = ".".join(at).removeprefix("settings.")
            flags = field.metadata.get("flags") or (f"--{name.replace('_', '-')}",)
            short = [f"--{word}" for word, full in SHORT.items() if full == name and place]
            # Whether the option belongs to another optimiser.
            other = hasattr(values, "own") and at[-1] in values.options() and at[-1] not in vars(values.own)
            useless = config and (no_effect(config, name) or other)
            yield Option(
                *(max(flags, key=len).removeprefix("--").replace("-", "_"), at, hint, value, kind, (*short, *flags)),
                hidden=bool(field.metadata.get("rare", False) or useless),
                positional=field.metadata.get("positional", False),
                single=field.metadata.get("single", False),
            )


@dataclass(frozen=True)
class Settings:
    """The arguments of a command that takes only the configuration of a run."""

    settings: Config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(command: str, kind: type[Arguments], words: Sequence[str], **sections: Any) -> Arguments:
    """Returns the arguments of `moespec command` as an instance of `kind`. With --help, prints the help and ends the process.

    sections: the configuration sections, by field name, before the options of the command line are applied.

    Raises ConfigError for an unknown option or word, a missing option, or an invalid value.
    """
    options = list(options_of(kind, SimpleNamespace(**sections)))
    if not set(HELP).isdisjoint(words):
        with suppress(ConfigError):  # with --help, mistakes on the command line are ignored
            texts = _texts(command, options, [word for word in words if word not in HELP], sections)
            sections |= _changed(options, texts, sections)
        _print_help(command, kind, list(options_of(kind, SimpleNamespace(**sections))))
        raise SystemExit(0)
    texts = _texts(command, options, words, sections)
    missing = [option for option in options if option.default is MISSING and option.name not in texts]
    if missing:
        raise ConfigError(f"{command}: {'; '.join(f'{option.name} is missing ({option.text})' for option in missing)}")
    arguments = kind(**{**sections, **_changed(options, texts, sections)})
    check_fields("", arguments)
    return arguments


def _texts(
    command: str, options: Sequence[Option], words: Sequence[str], sections: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the value of each option on a command line: True or False for a switch, otherwise a string or a list of strings."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    named = [option for option in options if not option.positional]
    for option in named:
        _add(parser, option)
    joined, places = _joined(named, words)
    parsed, rest = parser.parse_known_args(joined)
    if unknown := next((word for word in rest if word.startswith("-")), None):
        _check_owned(unknown, words, sections)
        raise ConfigError(f"{unknown}: unknown option{near_it(unknown, (f for o in named for f in o.flags))}")
    rest += places
    texts = vars(parsed)
    for option in options:
        if option.positional and rest:
            if "" in rest:
                raise ConfigError(f"{command}: expected a path, got ''; is a shell variable empty?")
            texts[option.name], rest = (rest, []) if option.several else (rest[0], rest[1:])
    if rest:
        before = next(before for before, word in pairwise(["", *words]) if word == rest[0])
        raise ConfigError(f"{rest[0]!r}: unexpected argument{f' after {before}' if before else ''}")
    return texts


def _add(parser: Any, option: Option, **more: Any) -> None:
    """Adds an option to an argparse parser or argument group."""
    how: dict[str, Any] = {"dest": option.name, **more}
    if option.switch:
        parser.add_argument(*option.flags, action="store_const", const=True, **how)
        if option.off:
            parser.add_argument(option.off, action="store_const", const=False, dest=option.name)
    elif option.single:
        parser.add_argument(*option.flags, action="append", **how)
    else:
        parser.add_argument(*option.flags, **({"nargs": "*", "action": "extend"} if option.several else {}), **how)


def _joined(options: Sequence[Option], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Joins an option and its single value into one word, since argparse would read a separate value such as -1e-9 as an option.

    The second list contains the words after `--`, which are never options.
    """
    switches = {flag for option in options if option.switch for flag in (*option.flags, option.off)}
    valued = {flag: o for o in options if not o.switch and (o.single or not o.several) for flag in o.flags}
    joined: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in switches and equals:
            raise ConfigError(f"{word}: a switch takes no value")
        if flag in valued and not equals:
            equals, value = "=", next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"{valued[flag].name}: its value is missing; expected {described(valued[flag].hint)}")
        joined.append(f"{flag}{equals}{value}")
    return joined, list(rest)


def _check_owned(flag: str, words: Sequence[str], sections: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that belongs to another model or router."""
    word, _, text = flag.partition("=")
    name = word.lstrip("-").replace("-", "_")
    *places, name = SHORT.get(name, name).split(".")
    section: Any = sections.get("settings", SimpleNamespace(**sections))
    for place in places:
        section = getattr(section, place, None)
    if hasattr(section, "owner"):
        text = text or next((after for before, after in pairwise(words) if before == word), "")
        check_names(f"{'.'.join(places)}.", {name: _converted(text, (int, float, str))}, section.owner, vars(section))


def _changed(options: Sequence[Option], texts: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that the command line sets, and the configuration sections with the options of the command line applied."""
    values: dict[str, Any] = {name: {} for name in sections}
    for option in options:
        if option.name in texts:
            table = values
            for place in option.place[:-1]:
                table = table.setdefault(place, {})
            table[option.place[-1]] = _value(option, texts[option.name])
    for name, section in sections.items():
        values[name] = update(section, values[name], prefix="" if name == "settings" else f"{name}.")
    return values


def _value(option: Option, given: Any) -> Any:
    """Converts the words of an option to the value of a field. Raises ConfigError for words that are not a valid value."""
    if isinstance(given, bool):
        return given
    if given == []:
        raise ConfigError(f"{option.name}: its value is missing")
    if given == "" and Path in option.types:
        raise ConfigError(f"{option.flags[-1]}: expected a path, got ''; is a shell variable empty?")
    try:
        if option.several:
            return tuple(_converted(text, option.types) for text in given)
        value = _converted(given, option.types)
    except ValueError:
        words = " ".join(given) if option.several else given
        raise ConfigError(f"{option.name}={words!r}: expected {described(option.hint)}") from None
    if isinstance(value, float) and math.isinf(value) and "inf" not in given.lower():
        raise ConfigError(f"{option.name}={given}: expected a finite number, or inf")
    return value


def _converted(text: str, kinds: Sequence[Any]) -> Any:
    """Converts a string to the first type that accepts the string. Raises ValueError if no type accepts the string."""
    for kind in sorted(kinds, key=lambda kind: kind is not type(None)):
        if kind is type(None) or kind is bool or get_origin(kind) is Literal:
            words = (
                {"None": None} if kind is type(None) else {str(word): word for word in get_args(kind) or (True, False)}
            )
            if text in words:
                return words[text]
        elif kind is not OwnName or is_own(text):
            with suppress(ValueError):
                return kind(text)
    raise ValueError(text)


def _print_help(command: str, kind: Any, options: Sequence[Option]) -> None:
    """Prints the description of a command and the options that are not hidden."""
    width = max(shutil.get_terminal_size().columns - 2, 40)
    places = [f"{option.name.upper()}{' ...' * option.several}" for option in options if option.positional]
    parser = _Parser(
        usage=" ".join(["moespec", command, *places, "[options]"]),
        description="\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in kind.__doc__.split("\n\n")),
        epilog="This help omits rarely used options; each field of a section above can be set as an option."
        if any(option.hidden for option in options)
        else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {"": parser}
    for option in sorted(options, key=lambda option: len(option.place) > 1):
        if option.hidden:
            continue
        default = ""
        if not option.switch and option.default not in (MISSING, None, "", ()):
            words = option.default if isinstance(option.default, tuple) else (option.default,)
            default = f" (default: {' '.join(map(str, words))})"
        text = f"{option.text}{default * ('(default' not in option.text)}".replace("%", "%%")
        if option.positional:
            choices = option.metavar if option.metavar.startswith("{") else option.name.upper()
            parser.add_argument(option.name, metavar=choices, help=text)
            continue
        title = ".".join(option.place[:-1]).removeprefix("settings").strip(".")
        if title not in groups:
            groups[title] = parser.add_argument_group(f"[{title}]")
        _add(groups[title], option, help=text, **({} if option.switch else {"metavar": option.metavar}))
    print(parser.format_help(), end="", flush=True)  # print_help of argparse would ignore a closed pipe
