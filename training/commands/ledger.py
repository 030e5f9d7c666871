"""The command `moespec ledger`."""

import re
from dataclasses import dataclass

from moespec.models.options import option
from moespec.spec import LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.entries import algorithm_of, entries_of
from moespec.spec.implementations.positions import find
from moespec.spec.ledger import LedgerEntry
from moespec.training.commandline.parse import parse
from moespec.training.ledger.show import as_json, comparison, full, positions

__all__ = ["main"]

_ID = re.compile(r"([A-Za-z]{2})[-_ ]?(\d+)([a-z]?)")


@dataclass(frozen=True)
class LedgerArguments:
    """Ask the ambiguity ledger: the questions that implementations answer differently, and who answers how.

    `moespec ledger expert_choice` has what concerns an algorithm, `moespec ledger GS-3` one entry, `moespec ledger --by
    vmoe` what a code base does, `moespec ledger --by vmoe --by mesh` where two differ. Reading a is that of this
    specification. "By" says whose code was read and where; "Measured" says which packages the suite was run on.
    """

    what: tuple[str, ...] = option((), positional=True)
    """algorithms (moespec list routers), public functions, entries (GS-3) or readings (GS-3b); without any, everything"""
    by: tuple[str, ...] = option((), single=True)
    """what this implementation does: a repository, package or part of its name; twice, where two of them differ"""
    json: bool = False
    """print JSON, for programs"""


def main(words: list[str]) -> None:
    """Prints entries of the ledger: all, or what the names mean; in full, or what implementations do about them.

    Raises ConfigError for a name that means nothing.
    """
    given = parse("ledger", LedgerArguments, words)
    entries = [entry for name in given.what for entry in selected(name)] if given.what else list(LEDGER.values())
    entries = list(dict.fromkeys(entries))
    names = list(dict.fromkeys(map(find, given.by)))
    if given.json:
        print(as_json(entries, names))
    elif not names:
        print(full(entries))
    else:
        print(positions(entries, names[0]) if len(names) == 1 else comparison(entries, names))


def selected(name: str) -> list[LedgerEntry]:
    """The entries that a name means: an entry, the entry of a reading, or those of an algorithm."""
    if not (match := _ID.fullmatch(name)):
        return entries_of(algorithm_of(name))
    prefix, number, letter = match.groups()
    entry = LEDGER.get(f"{prefix.upper()}-{number}")
    if entry is None:
        known = [id for id in LEDGER if id.startswith(f"{prefix.upper()}-")] or list(LEDGER)
        raise ConfigError(f"{name!r} is not in the ledger, which has {', '.join(known)}")
    if letter and f"{entry.id}{letter}" not in [reading.id for reading in entry.readings]:
        raise ConfigError(f"{name!r}: the readings of {entry.id} are {', '.join(r.id for r in entry.readings)}")
    return [entry]
