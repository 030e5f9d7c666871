"""Lists the pages of the site: one page for each algorithm of the specification."""

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
"""The repository root."""


class SiteError(Exception):
    """A page has an error: a failing example, a missing changelog revision, or a paper missing from the references."""


@dataclass(frozen=True)
class Page:
    """The page of one row of the matrix: a router, or a building block."""

    algorithm: Algorithm

    @property
    def name(self) -> str:
        """The name of the row, the page and its file."""
        return self.algorithm.name

    @property
    def names(self) -> tuple[str, ...]:
        """The common names by which the search finds the page: the title, other names, and the models that use the router."""
        own = NAMES.get(self.name) or (self.name.replace("_", " ").capitalize(),)
        return tuple(dict.fromkeys((*own, *(self.router.models if self.router else ()))))

    @property
    def router(self) -> Router[Any] | None:
        """The router, or None for a building block."""
        return ROUTERS.get(self.name)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The public functions that the row covers."""
        named = {name: getattr(spec, name) for name in self.algorithm.functions}
        return {name: value for name, value in named.items() if inspect.isfunction(value)}

    @cached_property
    def modules(self) -> list[ModuleType]:
        """The modules that specify the row: the router's file, the module that declares the algorithm, and the modules of the functions.

        For a router that chooses experts by a plan, the last module computes the combine weights.
        """
        names = [f"moespec.spec.routers.{self.name}"] if self.router else []
        names += [m.__name__ for m in registry.MODULES if self.algorithm in getattr(m, "ALGORITHMS", ())]
        names += [function.__module__ for function in self.functions.values()]
        names += [plan.__name__] if self.router and hasattr(sys.modules[names[0]], "combine_scores") else []
        return [sys.modules[name] for name in dict.fromkeys(names)]

    @property
    def entries(self) -> list[LedgerEntry]:
        """The ambiguity ledger's entries in the docstrings of the page's modules."""
        return [entry for module in self.modules for entry in entries(module.__doc__ or "", module.__name__)]

    @property
    def title(self) -> str:
        """The first line of the first module's docstring."""
        return (self.modules[0].__doc__ or "").partition("\n")[0]


def pages() -> list[Page]:
    """All pages, routers first, sorted by their common names."""
    return sorted(map(Page, ALGORITHMS.values()), key=lambda page: (page.router is None, page.names[0].lower()))


def home() -> dict[str, str]:
    """The name of the page for each ledger entry: the first page, in the order of `pages`, whose modules contain the entry."""
    found: dict[str, str] = {}
    for page in pages():
        for entry in page.entries:
            found.setdefault(entry.id, page.name)
    return found
