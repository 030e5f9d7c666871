"""The ledger entries that concern a router or a function: the entries of all modules that the router or function uses.

A search in the code finds the modules. The search starts from a function, or from the `route`, `init`, `noise` and `Options`
of a router, and follows every function and class of the specification that the code names.
"""

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from moespec import spec
from moespec.spec import ALGORITHMS, LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.ledger import LedgerEntry
from moespec.spec.names import near
from moespec.spec.routers import ROUTERS

__all__ = ["algorithm_of", "entries_of", "spelled"]

SPEC = "moespec.spec"


def spelled(name: str) -> str:
    """Normalises a name for comparison, so that `Expert-Choice`, `expert choice` and `expert_choice` become equal."""
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter in "/.")


def algorithm_of(name: str) -> str:
    """Returns the name of the conformance matrix row or public function that `name` refers to. Raises ConfigError for an unknown name."""
    functions = [public for public in spec.__all__ if inspect.isfunction(getattr(spec, public))]
    known: str
    for known in (*ALGORITHMS, *functions):
        if spelled(known) == spelled(name):
            return known
    alike = near(name.replace("-", "_"), [*ALGORITHMS, *LEDGER])
    raise ConfigError(
        f"{name!r} is neither a ledger entry, such as GS-3 or GS-3b, nor an algorithm; "
        f"{'did you mean' if alike else 'algorithms are'} {', '.join(alike or ALGORITHMS)}{'?' if alike else ''}"
    )


def entries_of(name: str) -> list[LedgerEntry]:
    """Returns the ledger entries of a conformance matrix row or a public function. The entries of the module `name` come first."""
    modules = list(_reached(_begin(name)))
    modules.sort(key=lambda module: module.rpartition(".")[2] != name)
    return [entry for module in modules for entry in LEDGER.values() if entry.module == module]


def _begin(name: str) -> list[Any]:
    """The functions and classes from which the search for modules starts."""
    functions = ALGORITHMS[name].functions if name in ALGORITHMS else (name,)
    objects = [getattr(spec, function) for function in functions if function != "ROUTERS"]
    if name in ROUTERS:
        router = ROUTERS[name]
        objects = [router.route, router.init, router.noise, router.Options, *objects]
    return objects


def _reached(begin: Iterable[Any]) -> dict[str, None]:
    """The modules of all functions and classes that the search reaches, in the order of the search."""
    waiting, seen, modules = list(begin), set[int](), dict[str, None]()
    while waiting:
        thing = inspect.unwrap(waiting.pop(0))
        module = getattr(thing, "__module__", None) or ""
        if id(thing) not in seen and module.startswith(SPEC):
            seen.add(id(thing))
            modules.setdefault(module)
            waiting += _named(thing)
    return modules


def _named(thing: Any) -> Iterator[Any]:
    """Yields the bases and methods of a class, or the functions and classes that the code of a function names."""
    if isinstance(thing, type):
        yield from thing.__bases__
        for value in vars(thing).values():
            yield getattr(value, "fget", None) or getattr(value, "__func__", value)
    elif isinstance(thing, FunctionType):
        public = thing.__module__.startswith(f"{SPEC}.routers.")  # in routers, an attribute may have a function's name
        for name in _names(thing.__code__):
            found = thing.__globals__.get(name)
            found = getattr(spec, name, None) if found is None and public and name in spec.__all__ else found
            if isinstance(found, FunctionType | type):
                yield found


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a code object and in its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
