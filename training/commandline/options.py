"""The options of a command: the fields of its dataclass, and those of the sections of the configuration among them."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from moespec.models.options import help_texts, no_effect
from moespec.models.router_options import RouterSection
from moespec.training.configuration.config import Config
from moespec.training.configuration.modelconfig import SHORT

__all__ = ["Option", "options_of"]

METAVARS = {int: "INT", float: "FLOAT", bool: "True|False", Path: "PATH", str: "TEXT"}


@dataclass(frozen=True, eq=False)
class Option:
    """An option. name: dotted, as in a TOML file and in messages. place: the names of the fields that lead to it.

    hidden: help leaves it out, as it has no effect or is rarely set.
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
        """What it does."""
        described = getattr(self.kind, "described_in", self.kind)
        texts: dict[str, str] = {**help_texts(described), **getattr(self.kind, "helps", {})}
        return texts.get(self.place[-1], "")

    @property
    def types(self) -> tuple[Any, ...]:
        """What a value may be."""
        if self.several:
            return get_args(self.hint)[:1]
        return get_args(self.hint) if get_origin(self.hint) in (Union, types.UnionType) else (self.hint,)

    @property
    def switch(self) -> bool:
        """Whether it has no value. An option of a router has one, True or False."""
        return self.hint is bool and not issubclass(self.kind, RouterSection)

    @property
    def off(self) -> str:
        """The flag that makes a switch of the configuration False."""
        section, dot, name = self.flags[-1].rpartition(".")
        return f"{section}.no-{name}" if self.switch and dot else ""

    @property
    def several(self) -> bool:
        """Whether it has several values."""
        return get_origin(self.hint) is tuple

    @property
    def metavar(self) -> str:
        """What stands for a value in the help."""
        kind = next(kind for kind in self.types if kind is not type(None))
        if get_origin(kind) is not Literal:
            return METAVARS[kind]
        words = f"{{{','.join(get_args(kind))}}}"
        return words if len(words) < 64 else "NAME"


def options_of(kind: Any, values: Any, place: tuple[str, ...] = (), config: Any = None) -> Iterator[Option]:
    """The options of a dataclass, which has `values`; of a field "settings" those of its sections by the names of these.

    config: the configuration that the dataclass is in, on which it depends what has an effect.
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        at, value, hint = (*place, field.name), getattr(values, field.name, field.default), hints[field.name]
        if is_dataclass(value):
            yield from options_of(type(value), value, at, value if isinstance(value, Config) else config)
        elif get_origin(hint) is not Mapping:  # tables of the user's own names stand in a file alone
            name = ".".join(at).removeprefix("settings.")
            flags = field.metadata.get("flags") or (f"--{name.replace('_', '-')}",)
            short = [f"--{word}" for word, full in SHORT.items() if full == name and place]
            rare, useless = (
                field.metadata.get("rare", False),
                config and (no_effect(config, name) or _other(values, at[-1])),
            )
            yield Option(
                *(max(flags, key=len).removeprefix("--").replace("-", "_"), at, hint, value, kind, (*short, *flags)),
                hidden=bool(rare or useless),
                positional=field.metadata.get("positional", False),
                single=field.metadata.get("single", False),
            )


def _other(section: Any, name: str) -> bool:
    """Whether a field is an option of another optimiser than the section's."""
    return hasattr(section, "own") and name in section.options() and name not in vars(section.own)
