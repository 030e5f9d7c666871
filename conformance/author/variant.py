"""Known variants: complete targets that do one thing differently, and everything else as the specification.

A change of a router is `(B, route, params, tokens, options, noise=None, train=False)`.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from moespec.backends.routers import composed
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.spec import ROUTERS
from moespec.spec.numerics import stable_order

__all__ = [
    *("TRAINING", "Replacement", "Variant", "changed", "chosen_mask", "configured", "every", "heap_order"),
    *("module_of", "noiseless", "noting", "of_router", "renormalised", "rerouted", "reweighted", "variant"),
    "weighted_by",
]

TRAINING = frozenset({"make_step", "init_state"})
"""Names that only training calls."""

Replacement = Callable[..., Any]
"""`(B, *arguments, **options)`, B being the right backend: what a public name, or the `route` of a router, becomes."""


@dataclass(frozen=True)
class Variant:
    """One thing done differently: another reading of a source, a known implementation, or a mistake.

    name: of the variant. computes: a sentence, what it does instead. replaced: public names of a target, or names of
    routers (whose `route` is replaced), with what they become; "ROUTERS" becomes what a function of them makes. ledger:
    the alternative of the ambiguity ledger that it takes ("GS-3b"), the question that it answers in a way that the
    ledger does not list ("GS-3"), or "". who: a public implementation that is known to do so, or "". row: the algorithm
    that must catch it, where that is not one of the replaced names.
    """

    name: str
    computes: str
    replaced: Mapping[str, Replacement]
    ledger: str = ""
    who: str = ""
    row: str = ""

    @property
    def algorithms(self) -> frozenset[str]:
        """The algorithms that must catch it: those of the replaced names; all, for an operation that none has.

        Training concerns the model that is trained.
        """
        if self.row or self.replaced.keys() <= TRAINING:
            return frozenset({self.row or "vit"})
        rows = {name: [a.name for a in ALGORITHMS.values() if name in a.functions] for name in self.replaced}
        return frozenset(row for name in rows for row in ([name] if name in ROUTERS else rows[name] or ALGORITHMS))


def variant(function: Replacement, *names: str, ledger: str = "", who: str = "", row: str = "") -> Variant:
    """The variant in which `function` is what each of `names` becomes; name and docstring are those of the function.

    Of a router it is a change of the route; see `changed`.
    """
    sentence = " ".join((function.__doc__ or "").split())
    replaced = {name: changed(name, function) if name in ROUTERS else function for name in names}
    return Variant(function.__name__, sentence, replaced, ledger, who, row)


def changed(router: str, change: Callable[..., Any]) -> Replacement:
    """What the route of a router becomes: `change(B, route, params, tokens, options, noise=..., train=...)`."""

    def route(B: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        return change(B, B.ROUTERS[router].route, params, tokens, options, **more)

    return route


def every(routers: Collection[str], change: Callable[..., Any]) -> dict[str, Replacement]:
    """The routes of several routers changed alike; see `changed`."""
    return {name: changed(name, change) for name in routers}


def of_router(
    router: str, name: str, computes: str, change: Callable[..., Any], ledger: str = "", who: str = ""
) -> Variant:
    """The variant of one router whose route is changed; see `changed`."""
    return Variant(name, computes, every((router,), change), ledger, who)


def _reference() -> Any:
    """The right backend: the specification behind the batched names."""
    return importlib.import_module("moespec.backends.numpy")


def module_of(replaced: Mapping[str, Replacement]) -> Any:
    """A target: the right backend with some names replaced, and its routers composed of what it then has."""
    B = _reference()
    module = SimpleNamespace(**{name: getattr(B, name) for name in dir(B)})
    for name in replaced.keys() - ROUTERS.keys() - {"ROUTERS"}:
        change = partial(replaced[name], B)
        setattr(module, name, change if callable(getattr(B, name)) else change())
    module.ROUTERS = dict(composed(module))
    for name in replaced.keys() & ROUTERS.keys():
        module.ROUTERS[name] = replace(module.ROUTERS[name], route=partial(replaced[name], B))
    if "ROUTERS" in replaced:
        module.ROUTERS = replaced["ROUTERS"](module.ROUTERS)
    return module


def noting(called: set[str]) -> Any:
    """The right backend as a target that records in `called` each public name and each router that is called."""
    B = _reference()

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any, **options: Any) -> Any:
            called.add(name)
            return function(*arguments, **options)

        return note

    module = SimpleNamespace(**{name: getattr(B, name) for name in dir(B)})
    for name in B.__all__:
        if callable(getattr(B, name)) and not isinstance(getattr(B, name), type):
            setattr(module, name, noted(name, getattr(B, name)))
    module.CAPACITY_RULES = {rule: noted("CAPACITY_RULES", f) for rule, f in B.CAPACITY_RULES.items()}
    module.ROUTERS = {
        name: replace(router, route=noted(name, router.route)) for name, router in composed(module).items()
    }
    return module


def heap_order(values: Any, axis: int = -1) -> Any:
    """Descending, by a sort that is not stable."""
    return np.argsort(-values.real, axis=axis, kind="heapsort")


def chosen_mask(scores: Any, choices: int) -> Any:
    """1 for the experts that a token chooses, 0 for the others: (groups, tokens, experts)."""
    mask = np.zeros(scores.shape)
    np.put_along_axis(mask, stable_order(scores)[..., :choices], 1.0, axis=2)
    return mask


def renormalised(routing: Any) -> Any:
    """The routing with the weights of a token divided by their sum, where that is positive."""
    total = routing.dense().combine.sum(axis=(2, 3))
    total = np.concatenate([np.where(total.real > 0, total, 1), np.ones_like(total[:, :1])], 1)
    of_each = np.take_along_axis(total, routing.token.reshape(len(total), -1), 1)
    return routing._replace(weight=routing.weight / of_each.reshape(routing.token.shape))


def weighted_by(routing: Any, scores: Any) -> Any:
    """The routing with the combine weights taken from `scores` (groups, tokens, experts)."""
    of_none = np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)
    weight = np.take_along_axis(of_none, routing.token.swapaxes(1, 2), axis=1).swapaxes(1, 2)
    return routing._replace(weight=weight)


def configured(**changed: Any) -> Callable[..., Any]:
    """The router with some of its options, where it has them, as they are here."""

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        own = {field.name for field in fields(options)}
        options = replace(options, **{name: value for name, value in changed.items() if name in own})
        return route(params, tokens, options, **more)

    return change


def noiseless(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The router without the noise that it is given."""
    return route(params, tokens, options, train=train)


def rerouted(B: Any, output: Any, routing: Any) -> Any:
    """The output of a router with another routing, and the metrics of that."""
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


def reweighted(B: Any, output: Any, scores: Any) -> Any:
    """The output of a router with the combine weights taken from `scores` (groups, tokens, experts)."""
    return rerouted(B, output, weighted_by(output.routing, scores))
