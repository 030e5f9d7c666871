"""How implementations answer the questions of the ledger, according to the ledger and to measurements.

An implementation in the ledger is a repository (`google-research/vmoe`), the paper of the module, or another paper. `measured.json`
contains results of the conformance suite on packages (`nox -s peers`). Each package belongs to a repository.
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
    """A package on which the conformance suite ran.

    package, version: the name and version of the package. repository: the repository of the package. readings: maps the id
    of each reading that the suite measured to a description of the code that ran.
    """

    package: str
    version: str
    repository: str
    readings: Mapping[str, str]

    @property
    def address(self) -> str:
        """The address of the PyPI page of the package version."""
        return of_package(self.package, self.version)


@dataclass(frozen=True)
class Seen:
    """Evidence that an implementation gives the answer of a reading.

    reading: the id of the reading. where: the location in the code or the paper, or the package and the code that ran.
    measured: True if the suite measured the reading, False if the ledger states the reading. addresses: the web addresses of the evidence.
    """

    reading: str
    where: str
    measured: bool
    addresses: Sequence[str] = ()


@cache
def measured() -> tuple[Measured, ...]:
    """The packages on which the conformance suite ran."""
    return tuple(Measured(**each) for each in json.loads(files(__package__).joinpath("measured.json").read_text()))


def seen(name: str, packages: Sequence[Measured] | None = None) -> dict[str, list[Seen]]:
    """Returns the known answers of an implementation, by the id of the ledger entry.

    name: a name that `find` returned. packages: the packages on which the suite ran, or None for the result of `measured`.
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
    """The names of all implementations with known answers: papers, then repositories, in alphabetical order."""
    said = [each.who for entry in LEDGER.values() for reading in entry.readings for each in reading.implementations]
    ran = [each.repository for each in (measured() if packages is None else packages) if each.readings]
    names = {spelled(name): name for name in (*ran, *said)}
    return sorted(names.values(), key=lambda name: (name != PAPER, "/" in name, name.casefold()))


def find(name: str) -> str:
    """Returns the implementation that a name refers to. `vmoe` means google-research/vmoe, `lucidrains` means all repositories of this
    owner, and `mixtral` means all files with this word in their paths. Raises ConfigError for an unknown or ambiguous name."""
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
    """Whether `name` is the implementation `who`, the owner of the repository, or a word in the file path in `where`."""
    if _same(who, name):
        return True
    if "/" not in who or "/" in name:
        return False
    path = where.partition(",")[0] if where else ""
    return _same(who.partition("/")[0], name) or spelled(name) in spelled(path)


def _same(one: str, other: str) -> bool:
    return spelled(one) == spelled(other)
