"""What a mutant is: a complete target that does one thing otherwise, and does everything else as the specification."""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from moespec.conformance.programs import PROGRAMS
from moespec.spec import ALGORITHMS, ROUTERS

__all__ = ["Mutant", "Replacement", "build", "every", "recorded", "through", "wrong"]

Replacement = Callable[..., Any]
"""`(B, *arguments, **options)`, where B is the right backend: what a public name, or the `route` of a router, becomes."""


@dataclass(frozen=True)
class Mutant:
    """One named deviation.

    name: of the mutant. computes: a sentence, what it does instead. replaced: public names of a target, or names of
    routers (whose `route` is replaced), with what they become. ledger: the question of the ambiguity ledger that it
    answers otherwise, or "". who: a public implementation that is known to do so, or "".
    """

    name: str
    computes: str
    replaced: Mapping[str, Replacement]
    ledger: str = ""
    who: str = ""

    @property
    def algorithms(self) -> frozenset[str]:
        """The algorithms that it concerns: those that the replaced names make, and that must catch it."""
        return frozenset(algorithm for name in self.replaced for algorithm in _makes(name))


def _makes(name: str) -> tuple[str, ...]:
    """The algorithms that have a public name among their functions; of an operation, those with a stage that calls it."""
    if name in ROUTERS:
        return (name,)
    specified = tuple(algorithm.name for algorithm in ALGORITHMS.values() if name in algorithm.functions)
    called = (a for a, stages in PROGRAMS.items() if any(name in stage.calls for stage in stages.values()))
    return specified or tuple(called) or tuple(ALGORITHMS)


def wrong(function: Replacement, *names: str, ledger: str = "", who: str = "") -> Mutant:
    """The mutant in which `function` is what each of `names` becomes; its name and docstring are those of the mutant."""
    sentence = " ".join((function.__doc__ or "").split())
    return Mutant(function.__name__, sentence, dict.fromkeys(names, function), ledger, who)


def _reference() -> Any:
    """The right backend: the specification behind the batched names."""
    return importlib.import_module("moespec.backends.numpy")


def build(replaced: Mapping[str, Replacement]) -> Any:
    """A target: the right backend with some names replaced, and its routers composed of what it then has."""
    B = _reference()
    module = SimpleNamespace(**vars(B))
    for name in replaced.keys() - ROUTERS.keys():
        change = partial(replaced[name], B)
        setattr(module, name, change if callable(getattr(B, name)) else change())
    module.ROUTERS = dict(importlib.import_module("moespec.backends.routers").build(module))
    for name in replaced.keys() & ROUTERS.keys():
        module.ROUTERS[name] = replace(module.ROUTERS[name], route=partial(replaced[name], B))
    return module


def recorded(called: set[str]) -> Any:
    """The right backend as a target that adds to `called` each public name, and each router, that is called."""
    B = _reference()

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any, **options: Any) -> Any:
            called.add(name)
            return function(*arguments, **options)

        return note

    module = SimpleNamespace(**vars(B))
    for name in B.__all__:
        if callable(getattr(B, name)) and not isinstance(getattr(B, name), type):
            setattr(module, name, noting(name, getattr(B, name)))
    module.CAPACITY_RULES = {rule: noting("CAPACITY_RULES", f) for rule, f in B.CAPACITY_RULES.items()}
    routers: Mapping[str, Any] = importlib.import_module("moespec.backends.routers").build(module)
    module.ROUTERS = {name: replace(router, route=noting(name, router.route)) for name, router in routers.items()}
    return module


def through(name: str, change: Callable[..., Any]) -> Replacement:
    """What the route of a router becomes: `change(B, route, params, tokens, config, noise=..., train=...)`."""

    def route(B: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        return change(B, B.ROUTERS[name].route, params, tokens, config, **options)

    return route


def every(names: Collection[str], change: Callable[..., Any]) -> dict[str, Replacement]:
    """The routes of several routers changed alike; see `through`."""
    return {name: through(name, change) for name in names}
