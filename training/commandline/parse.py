"""A command line as a dataclass. argparse finds the options and prints the help.

Values become those of the fields as in a TOML file (`configfile.update`), so that a mistake has the same message in both.
"""

import argparse
import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from moespec.models.checks import check_fields, check_names, described
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it
from moespec.training.commandline.options import SETTINGS, Option, options_of, options_of_sections
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import update
from moespec.training.configuration.modelconfig import SHORT

__all__ = ["parse", "parse_settings"]

Arguments = TypeVar("Arguments")
HELP = ("-h", "--help")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(command: str, kind: type[Arguments], words: Sequence[str], **sections: Any) -> Arguments:
    """The arguments of `moespec command` as a dataclass; --help prints the help and ends the process.

    sections: the fields that are sections of the configuration, as they are before the command line changes them.

    Raises ConfigError for an option or a word that there is not, that is missing, or that cannot have its value.
    """
    own = list(options_of(kind, sections))
    if not set(HELP).isdisjoint(words):
        words = [word for word in words if word not in HELP]
        with suppress(ConfigError):  # a mistake is reported where no help is requested
            sections = _changed(sections, _texts(command, own, words, sections))
        _print_help(command, kind, own, sections)
        raise SystemExit(0)
    texts = _texts(command, own, words, sections)
    values = {option.field: _value(option, texts[option.name]) for option in own if option.name in texts}
    missing = [
        f"{option.name} is missing ({option.text})" for option in own if option.required and option.field not in values
    ]
    if missing:
        raise ConfigError(f"{command}: {'; '.join(missing)}")
    arguments = kind(**values, **_changed(sections, texts))
    check_fields("", arguments)
    return arguments


@dataclass(frozen=True)
class _Settings:
    settings: Config


def parse_settings(command: str, words: Sequence[str], settings: Config) -> Config:
    """The configuration of a run, changed by a command line that has no other options."""
    return parse(command, _Settings, words, settings=settings).settings


def _texts(command: str, own: Sequence[Option], words: Sequence[str], sections: Mapping[str, Any]) -> dict[str, Any]:
    """What a command line gives each option, by its name: a text, or several, or True or False for a switch."""
    options = [*own, *options_of_sections(sections)]
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in options:
        if not option.positional:
            _add(parser, option)
    parsed, rest = parser.parse_known_args(_joined(options, words))
    if unknown := next((word for word in rest if word.startswith("-")), None):
        _check_owned(unknown, words, sections)
        raise ConfigError(f"{unknown}: there is no such option{near_it(unknown, (o.flags[-1] for o in options))}")
    texts = vars(parsed)
    for option in own:
        if option.positional and rest:
            count = len(rest) if option.several else 1
            texts[option.name] = rest[:count] if option.several else rest[0]
            if "" in rest[:count]:
                raise ConfigError(f"{command}: '' is no path; an empty variable of the shell?")
            rest = rest[count:]
    if rest:
        before = next(before for before, word in pairwise(["", *words]) if word == rest[0])
        raise ConfigError(f"{rest[0]!r}: not expected here{f', after {before}' if before else ''}")
    return texts


def _add(parser: Any, option: Option, **more: Any) -> None:
    """Adds an option to a parser of argparse, or to a group of one."""
    how: dict[str, Any] = {"dest": option.name, **more}
    if option.switch:
        parser.add_argument(*option.flags, action="store_const", const=True, **how)
        if option.off:
            parser.add_argument(option.off, action="store_const", const=False, dest=option.name)
    elif option.single:
        parser.add_argument(*option.flags, action="append", **how)
    else:
        parser.add_argument(*option.flags, **({"nargs": "*", "action": "extend"} if option.several else {}), **how)


def _joined(options: Sequence[Option], words: Sequence[str]) -> list[str]:
    """The words, of which an option and its one value are one: argparse takes a value such as -1e-9 for another option."""
    switches = {flag for option in options if option.switch for flag in (*option.flags, option.off)}
    valued = {flag for o in options if not o.switch and (o.single or not o.several) for flag in o.flags}
    joined: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in switches and equals:
            raise ConfigError(f"{word}: a switch takes no value")
        if flag in valued and not equals:
            equals, value = "=", next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"{flag.lstrip('-').replace('-', '_')}: its value is missing")
        joined.append(f"{flag}{equals}{value}")
    return joined


def _check_owned(flag: str, words: Sequence[str], sections: Mapping[str, Any]) -> None:
    """ConfigError for an option that the model or the router does not have, but another has."""
    word, _, text = flag.partition("=")
    name = word.lstrip("-").replace("-", "_")
    *places, name = SHORT.get(name, name).split(".")
    section: Any = sections.get(SETTINGS) or next(iter(sections.values()), None)
    for place in places:
        section = getattr(section, place, None)
    if hasattr(section, "owner"):
        text = text or next((after for before, after in pairwise(words) if before == word), "")
        check_names(f"{'.'.join(places)}.", {name: _number(text)}, section.owner, vars(section))


def _number(text: str) -> int | float | str:
    """The number that a word is, or the word."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _value(option: Option, given: Any) -> Any:
    """The value of a field. Raises ConfigError for words of a command line that the option cannot have."""
    if isinstance(given, bool):
        return given
    if option.several:
        if not given:
            raise ConfigError(f"{option.name}: its value is missing")
        with suppress(ValueError):
            return tuple(_converted(text, option.types) for text in given)
        raise ConfigError(f"{option.name}={' '.join(given)!r}: expected {described(option.hint)}")
    if given == "" and Path in option.types:
        raise ConfigError(f"{option.flags[-1]}: '' is no path; an empty variable of the shell?")
    try:
        value = _converted(given, option.types)
    except ValueError:
        raise ConfigError(f"{option.name}={given!r}: expected {described(option.hint)}") from None
    if isinstance(value, float) and math.isinf(value) and "inf" not in given.lower():
        raise ConfigError(f"{option.name}={given}: expected a finite number, or inf")
    return value


def _converted(text: str, kinds: Sequence[Any]) -> Any:
    """A text as a value of the first of the types that has it. Raises ValueError if none does."""
    for kind in sorted(kinds, key=lambda kind: kind is not type(None)):
        words = {type(None): {"None": None}, bool: {"True": True, "False": False}}.get(kind)
        if get_origin(kind) is Literal:
            words = {word: word for word in get_args(kind)}
        if words is not None:
            if text in words:
                return words[text]
            continue
        with suppress(ValueError):
            return kind(text)
    raise ValueError(text)


def _changed(sections: Mapping[str, Any], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with what a command line gives their options."""
    tables: dict[str, Any] = {place: {} for place in sections}
    for option in options_of_sections(sections):
        if option.name in texts:
            *places, name = option.name.split(".")
            table = tables.get(SETTINGS, tables)
            for place in places:
                table = table.setdefault(place, {})
            table[name] = _value(option, texts[option.name])
    prefixes = {place: "" if place == SETTINGS else f"{place}." for place in sections}
    return {place: update(section, tables[place], prefix=prefixes[place]) for place, section in sections.items()}


def _print_help(command: str, kind: Any, own: Sequence[Option], sections: Mapping[str, Any]) -> None:
    """Prints what a command does, and its options but those that have no effect."""
    width = max(shutil.get_terminal_size().columns - 2, 40)
    paragraphs = " ".join(kind.__doc__.split(" ")).split("\n\n")
    places = [option for option in own if option.positional]
    usage = ["moespec", command, *(f"{place.name.upper()}{' ...' * place.several}" for place in places), "[options]"]
    parser = _Parser(
        prog=f"moespec {command}",
        usage=" ".join(usage),
        description="\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs),
        epilog="Rarely set options are not listed: every field of the configuration is one." if sections else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {}
    for option in (*own, *options_of_sections(sections)):
        if option.hidden:
            continue
        shown = option.default not in (MISSING, None, "", ()) and not option.switch and "default" not in option.text
        text = f"{option.text} (default: {option.default})" if shown else option.text
        text = text.replace("%", "%%")
        if option.positional:
            parser.add_argument(option.name, metavar=option.name.upper(), help=text)
            continue
        title = "" if option in own else option.group
        if title and title not in groups:
            groups[title] = parser.add_argument_group(f"[{title}]")
        _add(groups.get(title, parser), option, help=text, **({} if option.switch else {"metavar": option.metavar}))
    parser.print_help()
