"""Which pages there are: one for each row of the conformance matrix that the specification has, by its name."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from generator.names import NAMES
from moespec import spec
from moespec.spec import ALGORITHMS, ROUTERS, registry
from moespec.spec.algorithm import Algorithm
from moespec.spec.ledger import LedgerEntry, entries
from moespec.spec.routers import plan
from moespec.spec.routers.record import Router

ROOT = Path(__file__).parents[2]
"""The repository."""


class SiteError(Exception):
    """What a page shows does not hold: an example, a revision in the changelog, a paper that is not among the references."""


@dataclass(frozen=True)
class Page:
    """The page of one row of the matrix: a router, or a building block."""

    algorithm: Algorithm

    @property
    def name(self) -> str:
        """Of the row, the page and its file."""
        return self.algorithm.name

    @property
    def names(self) -> tuple[str, ...]:
        """As people write it, first the one that is its title; also the models that use it, for the search."""
        own = NAMES.get(self.name) or (self.name.replace("_", " ").capitalize(),)
        return tuple(dict.fromkeys((*own, *(self.router.models if self.router else ()))))

    @property
    def router(self) -> Router[Any] | None:
        """The router, if it is one."""
        return ROUTERS.get(self.name)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The public functions that the row covers."""
        named = {name: getattr(spec, name) for name in self.algorithm.functions}
        return {name: value for name, value in named.items() if inspect.isfunction(value)}

    @cached_property
    def modules(self) -> list[ModuleType]:
        """Where it is specified: the router's file, the module that declares the row, those of its functions.

        Of a router that selects by a plan last, what weights its outputs.
        """
        names = [f"moespec.spec.routers.{self.name}"] if self.router else []
        names += [m.__name__ for m in registry.MODULES if self.algorithm in getattr(m, "ALGORITHMS", ())]
        names += [function.__module__ for function in self.functions.values()]
        names += [plan.__name__] if self.router and hasattr(sys.modules[names[0]], "combine_scores") else []
        return [sys.modules[name] for name in dict.fromkeys(names)]

    @property
    def entries(self) -> list[LedgerEntry]:
        """The entries of the ambiguity ledger in the docstrings of its modules."""
        return [entry for module in self.modules for entry in entries(module.__doc__ or "", module.__name__)]

    @property
    def title(self) -> str:
        """The first sentence of its module: what it is."""
        return (self.modules[0].__doc__ or "").partition("\n")[0]


def pages() -> list[Page]:
    """All pages, routers first, each by the names that people write."""
    return sorted(map(Page, ALGORITHMS.values()), key=lambda page: (page.router is None, page.names[0].lower()))


def home() -> dict[str, str]:
    """For each entry of the ledger the page that has it: that of its router, or of the first row of its module."""
    found: dict[str, str] = {}
    for page in pages():
        for entry in page.entries:
            found.setdefault(entry.id, page.name)
    return found
