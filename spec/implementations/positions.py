"""How implementations answer the questions of the ledger, according to the ledger and to measurements.

An implementation in the ledger is a repository (`google-research/vmoe`), the paper of the module, or another paper. `measured.json`
has the results of suite runs on packages (`nox -s peers`). Each package belongs to a repository.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from moespec.spec import LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.entries import spelled
from moespec.spec.implementations.places import addresses, of_package
from moespec.spec.ledger import LedgerEntry

__all__ = ["PAPER", "Measured", "Seen", "find", "implementations", "is_of", "measured", "seen"]

PAPER = "the paper"


@dataclass(frozen=True)
class Measured:
    """A package that the suite was run on.

    package, version: its name and version. repository: the repository of its code. readings: maps the id of each
    reading that the suite measured to the code that ran.
    """

    package: str
    version: str
    repository: str
    readings: Mapping[str, str]

    @property
    def address(self) -> str:
        """The PyPI page of the package at its version."""
        return of_package(self.package, self.version)


@dataclass(frozen=True)
class Seen:
    """Evidence that an implementation takes a reading.

    reading: the id of the reading. where: the place in the code or the paper, or the package and the code that was run.
    measured: True if the suite measured the reading, False if the ledger states it. addresses: links to the place.
    """

    reading: str
    where: str
    measured: bool
    addresses: Sequence[str] = ()


@cache
def measured() -> tuple[Measured, ...]:
    """The packages that the suite was run on."""
    return tuple(Measured(**each) for each in json.loads(files(__package__).joinpath("measured.json").read_text()))


def seen(name: str, packages: Sequence[Measured] | None = None) -> dict[str, list[Seen]]:
    """The known answers of an implementation, by the id of the entry. name: as returned by `find`.

    packages: the packages that the suite was run on; None for the packages in `measured`.
    """
    mine = [each for each in (measured() if packages is None else packages) if is_of(each.repository, "", name)]
    by_id = {id: [*_said(entry, name), *_measured(entry, mine)] for id, entry in LEDGER.items()}
    return {id: sorted(all, key=lambda each: each.reading) for id, all in by_id.items() if all}


def _said(entry: LedgerEntry, name: str) -> Iterator[Seen]:
    for reading in entry.readings:
        for implementation in reading.implementations:
            if is_of(implementation.who, implementation.where, name):
                yield Seen(reading.id, implementation.where, False, addresses(implementation, entry.module))


def _measured(entry: LedgerEntry, packages: Sequence[Measured]) -> Iterator[Seen]:
    for reading in entry.readings:
        for each in packages:
            if reading.id in each.readings:
                where = f"{each.package} {each.version}, {each.readings[reading.id]}"
                yield Seen(reading.id, where, True, [each.address])


def implementations(packages: Sequence[Measured] | None = None) -> list[str]:
    """The names of all implementations with known answers: papers first, then code, by name."""
    said = [each.who for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations]
    ran = [each.repository for each in (measured() if packages is None else packages) if each.readings]
    names = {spelled(name): name for name in (*ran, *said)}
    return sorted(names.values(), key=lambda name: (name != PAPER, "/" in name, name.casefold()))


def find(name: str) -> str:
    """Returns the implementation that a name refers to: `vmoe` is google-research/vmoe, `lucidrains` is all repositories of that owner,
    and `mixtral` (no repository) is all files with this word in their paths. Raises ConfigError for an unknown or ambiguous name."""
    names = {known: [known, known.rpartition("/")[2], *_packages(known)] for known in implementations()}
    exactly = [known for known, all in names.items() if any(_same(each, name) for each in all)]
    about = [known for known, all in names.items() if any(spelled(name) in spelled(each) for each in all)]
    found = exactly or about
    if len(found) == 1:
        return found[0]
    everybody = [each for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations]
    owned = any(_same(known.partition("/")[0], name) for known in names if "/" in known)
    if owned or (not found and any(is_of(each.who, each.where, name) for each in everybody)):
        return name
    if not found:
        raise ConfigError(f"by={name!r}: not in the ledger; expected one of {', '.join(names)}")
    raise ConfigError(f"by={name!r} is ambiguous: {', '.join(found)}")


def _packages(name: str) -> list[str]:
    return [each.package for each in measured() if _same(each.repository, name)]


def is_of(who: str, where: str, name: str) -> bool:
    """Whether a name is the repository of an implementation, the owner of the repository, or a word in the path of the file."""
    if _same(who, name):
        return True
    if "/" not in who or "/" in name:
        return False
    path = where.partition(",")[0] if where else ""
    return _same(who.partition("/")[0], name) or spelled(name) in spelled(path)


def _same(one: str, other: str) -> bool:
    return spelled(one) == spelled(other)
