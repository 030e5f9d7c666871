"""Known variants: complete targets that differ from the specification in one respect.

A change of a router is a function `(B, route: Route) -> output`. Arrays have a leading groups axis: scores and logits are (groups, tokens,
experts), tokens are (groups, tokens, width), a routing's `token` and `weight` are (groups, experts, slots). A loss is the mean over groups.
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from moespec import spec
from moespec.backends.blocks import Array
from moespec.backends.contract import Backend
from moespec.backends.routers import composed
from moespec.backends.routers.composition import noisy_logits
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.spec import ROUTERS
from moespec.spec.algorithms.capacity import CapacityRule
from moespec.spec.algorithms.clustering import Clustering
from moespec.spec.algorithms.transport_duals import Dual, SemiDual
from moespec.spec.numerics import stable_order
from moespec.spec.routing import Params, RouterOutput

__all__ = [
    *("TRAINING", "Change", "Spec", "Replacement", "Route", "Variant", "changed", "chosen_mask", "every"),
    *("below_zero", "fixed", "heap_order", "kept", "module_of", "noiseless", "noting", "one_group", "renormalised"),
    *("rerouted", "reweighted", "scaled", "variant", "weighted_by", "with_loss", "without_biases"),
]

TRAINING = frozenset({"make_step", "init_state"})
"""Public names that only training calls."""

Replacement = Callable[..., Any]
"""`(B, *arguments, **options) -> result`: replaces a public name or a router's `route`. B is the unchanged backend."""


class Spec(Backend, Protocol):
    """The interface of the reference backend, including names that no router, layer or model calls."""

    CAPACITY_RULES: Mapping[str, CapacityRule]
    SoftRouting: Any

    def batch_priority(self, scores: Array, *, by: str = "max", choices: int = 1) -> Array: ...
    def hash_table_balanced(self, frequencies: Array, *, experts: int) -> Array: ...
    def importance_score_order(self, scores: Array, *, drop: float = 0.1) -> Array: ...
    def k_means(self, points: Array, centroids: Array, *, iterations: int = 25) -> Clustering: ...
    def project_sparse_simplex(self, values: Array, **options: Any) -> Array: ...
    def sinkhorn_affinity(self, logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array: ...
    def sparse_transport_affinity(self, utility: Array, *, capacity: int, **options: Any) -> Array: ...
    def transport_dual(
        self, token_potential: Array, expert_potential: Array, utility: Array, **options: Any
    ) -> Dual: ...
    def transport_semi_dual(self, potential: Array, utility: Array, **options: Any) -> SemiDual: ...


@dataclass(frozen=True)
class Variant:
    """One difference from the specification: another reading of a source, a known implementation's behaviour, or a mistake.

    computes: the difference, as a sentence. who: a public implementation with this difference, or "".
    replaced: maps a public name to its replacement, a router name to a new `route`, and "ROUTERS" to a function of the routers.
    ledger: the alternative in the ambiguity ledger ("GS-3b"), or the question to which the variant is an unlisted answer ("GS-3"), or "".
    row: the algorithm whose cases must catch the variant, if `replaced` does not name the algorithm.
    """

    name: str
    computes: str
    replaced: Mapping[str, Replacement]
    ledger: str = ""
    who: str = ""
    row: str = ""

    @property
    def algorithms(self) -> frozenset[str]:
        """Return the algorithms whose cases must catch the variant. By default, these are the algorithms that define
        the replaced names, or all algorithms if none defines a replaced name.
        """
        if self.row or self.replaced.keys() <= TRAINING:
            return frozenset({self.row or "vit"})
        rows = {name: [a.name for a in ALGORITHMS.values() if name in a.functions] for name in self.replaced}
        return frozenset(row for name in rows for row in ([name] if name in ROUTERS else rows[name] or ALGORITHMS))


def variant(function: Replacement, *names: str, ledger: str = "", who: str = "", row: str = "") -> Variant:
    """Return the variant that replaces each of `names` with `function`. The variant takes the function's name and docstring.

    For a router name, `function` must be a `Change`.
    """
    sentence = " ".join((function.__doc__ or "").split())
    replaced = {name: changed(name, function) if name in ROUTERS else function for name in names}
    return Variant(function.__name__, sentence, replaced, ledger, who, row)


@dataclass(frozen=True)
class Route:
    """A call of a router's `route`, with the arguments and the unchanged output.

    more: the keyword arguments `noise` and `train`, the arrays that the router requires, and the router's state.
    """

    function: Callable[..., RouterOutput]
    params: Params
    tokens: Array
    options: Any
    more: Mapping[str, Any]

    @property
    def noise(self) -> Array | None:
        """The noise of the call, or None."""
        return self.more.get("noise")

    @property
    def train(self) -> bool:
        """Whether the call is in training mode."""
        return bool(self.more.get("train"))

    def logits(self, B: Spec) -> tuple[Array, Array]:
        """Return the clean and noisy logits of a router with gating noise."""
        return noisy_logits(B, self.params, self.tokens, self.options, self.noise)

    def output(self, *, options: Any = None, **more: Any) -> RouterOutput:
        """Return the router's output, optionally with other options or keyword arguments."""
        return self.function(self.params, self.tokens, options or self.options, **{**self.more, **more})


Change = Callable[[Any, Route], RouterOutput]
"""`(B, route) -> output`: computes the changed output of a router from the unchanged backend B and the call `route`."""


def changed(router: str, change: Change) -> Replacement:
    """Return a function that replaces a router's `route`. The function calls `change(B, route)`."""

    def route(B: Spec, params: Params, tokens: Array, options: Any, **more: Any) -> RouterOutput:
        return change(B, Route(B.ROUTERS[router].route, params, tokens, options, more))

    return route


def every(routers: Collection[str], change: Change) -> dict[str, Replacement]:
    """Return the replacements that apply one change to several routers."""
    return {name: changed(name, change) for name in routers}


def fixed(
    name: str, computes: str, of: str | Sequence[str], ledger: str = "", who: str = "", row: str = "", **options: Any
) -> Variant:
    """Return the variant that fixes options of routers or arguments of functions.

    of: the routers or functions. options: the fixed values, or callables that compute a function's fixed value from the original value.
    """

    def configured(B: Spec, route: Route) -> RouterOutput:
        own = {field.name for field in fields(route.options)}
        known = {option: value for option, value in options.items() if option in own}
        return route.output(options=replace(route.options, **known))

    def function(each: str) -> Replacement:
        def changed(B: Spec, *arguments: Any, **named: Any) -> Any:
            given, right = _bound(each, arguments, named)
            wrong = {option: value(right[option]) if callable(value) else value for option, value in options.items()}
            return getattr(B, each)(**{**given, **wrong})

        return changed

    names = (of,) if isinstance(of, str) else of
    replaced = {each: changed(each, configured) if each in ROUTERS else function(each) for each in names}
    return Variant(name, computes, replaced, ledger, who, row)


def scaled(name: str, computes: str, ledger: str = "", who: str = "", **factors: Callable[..., Any]) -> Variant:
    """Return the variant that multiplies results by `factor(**arguments)`. factors: maps each function's name to its factor."""

    def function(of: str, factor: Callable[..., Any]) -> Replacement:
        def changed(B: Spec, *arguments: Any, **named: Any) -> Any:
            return getattr(B, of)(*arguments, **named) * factor(**_bound(of, arguments, named)[1])

        return changed

    return Variant(name, computes, {of: function(of, factor) for of, factor in factors.items()}, ledger, who)


def _bound(of: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dicts by argument name: the arguments that a call passes, and all arguments including default values."""
    signature = inspect.signature(getattr(spec, of))
    given = signature.bind(*arguments, **named).arguments
    return given, {name: parameter.default for name, parameter in signature.parameters.items()} | given


def _reference() -> Any:
    """Return the reference backend, which runs the specification on batched arrays."""
    return importlib.import_module("moespec.backends.numpy")


def module_of(replaced: Mapping[str, Replacement]) -> Any:
    """Return a target: the reference backend with some names replaced. The target's routers call the replacements."""
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
    """Return the reference backend as a target that adds each called public name and router to the set `called`."""
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


def heap_order(values: Array, axis: int = -1) -> Array:
    """Return the indices of an unstable sort in descending order."""
    return np.argsort(-values.real, axis=axis, kind="heapsort")


def chosen_mask(scores: Array, choices: int) -> Array:
    """Return an array (groups, tokens, experts) with 1 for each expert that a token chooses, else 0."""
    mask = np.zeros(scores.shape)
    np.put_along_axis(mask, stable_order(scores)[..., :choices], 1.0, axis=2)
    return mask


def one_group(scores: Array) -> Array:
    """Merge the tokens of all groups into one group."""
    return scores.reshape(1, -1, scores.shape[2])


def below_zero(values: Array) -> Array:
    """Replace each -0.0 with a number below 0."""
    return np.where((values == 0) & np.signbit(values.real), -1e-300, values)


def without_biases(params: Params) -> Params:
    """Return the parameters with every bias set to 0."""
    return {
        name: 0 * array if name.startswith("b") or name.endswith("bias") else array for name, array in params.items()
    }


def renormalised(routing: Any) -> Any:
    """Divide each token's combine weights by their sum if the sum is positive."""
    total = routing.dense().combine.sum(axis=(2, 3))
    total = np.concatenate([np.where(total.real > 0, total, 1), np.ones_like(total[:, :1])], 1)
    of_each = np.take_along_axis(total, routing.token.reshape(len(total), -1), 1)
    return routing._replace(weight=routing.weight / of_each.reshape(routing.token.shape))


def kept(routing: Any, stays: Array) -> Any:
    """Return the routing after emptying each slot for which `stays` is False."""
    token = np.where(stays, routing.token, routing.tokens).astype(np.int32)
    return routing._replace(token=token, weight=np.where(stays, routing.weight, 0), slot=None)


def weighted_by(routing: Any, scores: Array) -> Any:
    """Return the routing with combine weights from `scores` (groups, tokens, experts)."""
    of_none = np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)
    weight = np.take_along_axis(of_none, routing.token.swapaxes(1, 2), axis=1).swapaxes(1, 2)
    return routing._replace(weight=weight)


def with_loss(output: RouterOutput, options: Any, name: str, value: Array) -> RouterOutput:
    """Replace the loss `name` in the router's output. The losses store the weighted value, and the metrics store the unweighted value."""
    losses = {**output.losses, name: getattr(options, f"{name}_weight") * value}
    return output._replace(losses=losses, metrics={**output.metrics, f"{name}_loss": value})


def noiseless(B: Spec, route: Route) -> RouterOutput:
    """Run the router without noise."""
    return route.output(noise=None)


def rerouted(B: Spec, output: RouterOutput, routing: Any) -> RouterOutput:
    """Replace the routing in the router's output, and recompute the metrics."""
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


def reweighted(B: Spec, output: RouterOutput, scores: Array) -> RouterOutput:
    """Return the router's output with combine weights from `scores` (groups, tokens, experts)."""
    return rerouted(B, output, weighted_by(output.routing, scores))
