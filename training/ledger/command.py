"""The command `moespec ledger`."""

import re
from collections.abc import Sequence

from moespec.spec import LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.entries import algorithm_of, entries_of
from moespec.spec.implementations.positions import find
from moespec.spec.ledger import LedgerEntry
from moespec.training.ledger.show import as_json, comparison, full, positions

__all__ = ["ledger_command"]

_ID = re.compile(r"([A-Za-z]{2})[-_ ]?(\d+)([a-z]?)")


def ledger_command(what: Sequence[str], *, by: Sequence[str], json: bool) -> None:
    """Prints entries of the ledger: all, or what the names mean; in full, or what implementations do about them.

    Raises ConfigError for a name that means nothing.
    """
    entries = [entry for name in what for entry in selected(name)] if what else list(LEDGER.values())
    entries = list(dict.fromkeys(entries))
    names = list(dict.fromkeys(map(find, by)))
    if json:
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
