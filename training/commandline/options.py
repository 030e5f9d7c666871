"""The options of a command: the fields of its dataclass, and those of the sections of the configuration that it takes."""

import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from moespec.models.options import help_texts, no_effect
from moespec.models.router_options import RouterSection
from moespec.training.configuration.config import Config
from moespec.training.configuration.modelconfig import SHORT

__all__ = ["SETTINGS", "Option", "options_of", "options_of_sections"]

SETTINGS = "settings"
"""The field of a command that is the whole configuration, whose sections have their own names on the command line."""
METAVARS = {int: "INT", float: "FLOAT", bool: "True|False", Path: "PATH", str: "TEXT"}


@dataclass(frozen=True, eq=False)
class Option:
    """An option. name: dotted, as in a TOML file and in messages. kind: the class with its field, below which help says what it does."""

    name: str
    field: str
    """the name of the field"""
    hint: Any
    default: Any
    kind: Any
    flags: tuple[str, ...]
    required: bool = False
    off: str = ""
    """the flag that makes a switch False, if there is one"""
    positional: bool = False
    single: bool = False
    """each use of the flag adds one value"""
    hidden: bool = False
    """help leaves it out: it has no effect, or is rarely set"""

    @property
    def group(self) -> str:
        """The section in which it is."""
        return self.name.rpartition(".")[0]

    @property
    def text(self) -> str:
        """What it does."""
        described = getattr(self.kind, "described_in", self.kind)
        return {**help_texts(described), **getattr(self.kind, "helps", {})}.get(self.field, "")

    @property
    def types(self) -> tuple[Any, ...]:
        """What a value may be."""
        if get_origin(self.hint) is tuple:
            return get_args(self.hint)[:1]
        return get_args(self.hint) if get_origin(self.hint) in (Union, types.UnionType) else (self.hint,)

    @property
    def switch(self) -> bool:
        """Whether it has no value."""
        return bool(self.off) or (self.hint is bool and "." not in self.name)

    @property
    def several(self) -> bool:
        """Whether it has several values."""
        return get_origin(self.hint) is tuple

    @property
    def metavar(self) -> str:
        """What stands for a value in the help."""
        kind = next(kind for kind in self.types if kind is not type(None))
        return f"{{{','.join(get_args(kind))}}}" if get_origin(kind) is Literal else METAVARS[kind]


def options_of(kind: Any, sections: Collection[str]) -> Iterator[Option]:
    """The options of a command's dataclass, but for the fields that are sections of the configuration."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.name not in sections:
            flags = field.metadata.get("flags") or (f"--{field.name.replace('_', '-')}",)
            name = max(flags, key=len).removeprefix("--").replace("-", "_")
            yield Option(
                *(name, field.name, hints[field.name], field.default, kind, flags),
                required=field.default is MISSING,
                positional=field.metadata.get("positional", False),
                single=field.metadata.get("single", False),
            )


def options_of_sections(sections: Mapping[str, Any]) -> Iterator[Option]:
    """The options of sections of the configuration by their names, of which `SETTINGS` is the whole."""
    for place, section in sections.items():
        yield from _of_section("" if place == SETTINGS else f"{place}.", section, section)


def _of_section(prefix: str, section: Any, config: Any) -> Iterator[Option]:
    hints = get_type_hints(type(section))
    for field in fields(section):
        name, hint, value = f"{prefix}{field.name}", hints[field.name], getattr(section, field.name)
        if is_dataclass(value):
            yield from _of_section(f"{name}.", value, config)
        elif get_origin(hint) is not Mapping:  # tables of the user's own names stand in a file alone
            flag = f"--{name.replace('_', '-')}"
            flags = (*(f"--{short}" for short, full in SHORT.items() if full == name), flag)
            off = (
                f"--{prefix}no-{field.name}".replace("_", "-")
                if hint is bool and not isinstance(section, RouterSection)
                else ""
            )
            useless = isinstance(config, Config) and (no_effect(config, name) or _of_another(section, field.name))
            hidden = bool(useless) or field.metadata.get("rare", False)
            yield Option(name, field.name, hint, value, type(section), flags, off=off, hidden=hidden)


def _of_another(section: Any, name: str) -> bool:
    """Whether a field is an option of another optimiser than the section's."""
    return hasattr(section, "own") and name in section.options() and name not in vars(section.own)
