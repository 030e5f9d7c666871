"""What is specified: the algorithms, which are the rows of the conformance matrix, and the ambiguity ledger.

Both are read off the modules: a module says in `ALGORITHMS` which rows it has, a router in its record, and the entries
of the ledger stand in the docstrings.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from moespec.spec.algorithm import Algorithm
from moespec.spec.ledger import LedgerEntry, entries
from moespec.spec.names import Names
from moespec.spec.routers import ROUTERS

__all__ = ["ALGORITHMS", "LEDGER"]


def _modules(package: str) -> Iterator[ModuleType]:
    """The modules of a package, in the order of their names."""
    for module in iter_modules(import_module(package).__path__, f"{package}."):
        if module.name != __name__:
            yield import_module(module.name)


def _algorithms() -> Iterator[Algorithm]:
    for module in _modules("moespec.spec.algorithms"):
        yield from getattr(module, "ALGORITHMS", ())
    for router in ROUTERS.values():
        yield router.algorithm


def _ledger() -> Iterator[LedgerEntry]:
    for package in ("moespec.spec.algorithms", "moespec.spec.routers"):
        for module in _modules(package):
            yield from entries(module.__doc__ or "", module.__name__)


def _number(entry: LedgerEntry) -> tuple[str, int]:
    prefix, number = entry.id.split("-")
    return prefix, int(number)


ALGORITHMS: dict[str, Algorithm] = Names({each.name: each for each in _algorithms()})
"""The algorithms by name: the functions, then the routers."""

LEDGER: dict[str, LedgerEntry] = Names({e.id: e for e in sorted(_ledger(), key=_number)})
"""The ambiguity ledger by id."""
