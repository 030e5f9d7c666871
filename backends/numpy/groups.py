"""Turns a specification function, which takes one group, into a backend function, which takes all groups.

The type of an argument determines whether it has a groups axis or is shared (see `moespec.backends.binding`). Sparse
routings are joined into one `SlotRouting`. Arrays and named results are stacked along a leading groups axis (integers
as int32). Scalars and dicts of metrics are averaged over the groups. Results of type `Summed` are summed over the groups.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from moespec import spec
from moespec.backends.binding import array_arguments, is_summed
from moespec.backends.routers import composed
from moespec.spec.errors import ShapeError
from moespec.spec.routers import Router, Routers
from moespec.spec.routing import DenseRouting, Params, RouterOutput, Routing, State
from moespec.spec.values import even

__all__ = ["SlotRouting", "SoftRouting"]

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class SlotRouting(NamedTuple):
    """A sparse routing, stored by slot.

    token: (G, E, C) int32, the token in each slot, or `tokens` for an empty slot.
    weight: (G, E, C), the combine weight of each slot, 0 for an empty slot.
    slot: always None here; compiled backends store the slot of each choice.
    tokens: the number T of tokens in a group.
    """

    token: Array
    weight: Array
    slot: None
    tokens: int

    def dense(self) -> Routing:
        """Returns the dispatch and combine tensors of the papers, each (G, T, E, C)."""
        dispatch = (self.token[:, None] == np.arange(self.tokens)[:, None, None]).astype(np.float64)
        return Routing(dispatch, dispatch * self.weight[:, None])


class SoftRouting(NamedTuple):
    """An inherently dense routing: `dispatch` and `combine`, each (G, T, E, C)."""

    dispatch: Array
    combine: Array

    def dense(self) -> Routing:
        """Returns `dispatch` and `combine` as a `Routing` of the specification."""
        return Routing(self.dispatch, self.combine)


def batched(function: Function) -> Function:
    """Returns a version of `function` that runs on each group and joins the results. Without groups arguments, returns `function`."""
    kinds = array_arguments(function)
    if "group" not in kinds.values():
        return function
    grouped = [name for name, kind in kinds.items() if kind != "shared"]
    returned = get_type_hints(function, include_extras=True).get("return")
    how = {"is_dense": returned == DenseRouting, "is_sum": is_summed(function)}
    signature = inspect.signature(function)

    @functools.wraps(function)
    def of_groups(*args: Any, **options: Any) -> Any:
        arguments = signature.bind(*args, **options).arguments
        arrays = {name: arguments.pop(name) for name in grouped if name in arguments}
        return together([function(**group, **arguments) for group in groups(**arrays)], **how)

    return cast(Function, of_groups)


def groups(**arrays: Any) -> list[dict[str, Any]]:
    """Returns the arguments of each group g: row g of every array or routing, and None for an argument that is None.

    Raises ShapeError if there are no groups or if the arrays have different numbers of groups.
    """
    rows = {name: _rows(name, array) for name, array in arrays.items() if array is not None}
    first = next(iter(rows))
    if not len(rows[first]):
        raise ShapeError(f"{first}: expected at least one group along the leading axis, got shape {rows[first].shape}")
    for name, array in rows.items():
        if len(array) != len(rows[first]):
            raise ShapeError(f"{name}: has {len(array)} groups, but {first} has {len(rows[first])}")
    return [{name: rows[name][g] if name in rows else None for name in arrays} for g in range(len(rows[first]))]


def _rows(name: str, array: Any) -> Any:
    if isinstance(array, SlotRouting | SoftRouting):
        return [Routing(*pair) for pair in zip(*array.dense(), strict=True)]
    array = even(name, array)
    return array if array.ndim else array.reshape(-1)[:0]


def together(results: Sequence[Any], *, is_dense: bool = False, is_sum: bool = False) -> Any:
    """Joins the results of all groups into one result."""
    first = results[0]
    if is_sum:
        return summed(results)
    if isinstance(first, Routing):
        return SoftRouting(*map(_stack, zip(*results, strict=True))) if is_dense else by_slot(results)
    if isinstance(first, dict):
        return {name: sum((result[name] for result in results[1:]), first[name]) / len(results) for name in first}
    if isinstance(first, tuple):
        return type(first)(*map(_stack, zip(*results, strict=True)))
    return np.mean(results) if np.ndim(first) == 0 else _stack(results)


def summed(results: Sequence[Any]) -> Any:
    """Sums arrays, or dicts of arrays entry by entry."""
    first, *others = results
    if isinstance(first, dict):
        return {name: summed([result[name] for result in results]) for name in first}
    return sum(others, first)


def by_slot(routings: Sequence[Routing]) -> SlotRouting:
    """Converts one sparse routing per group, in dense form, to a `SlotRouting` of all groups."""
    token = _stack([spec.slot_tokens(routing) for routing in routings])
    weight = np.stack([routing.combine.sum(axis=0) for routing in routings])  # a slot holds at most one token
    return SlotRouting(token, weight, None, len(routings[0].dispatch))


def _stack(values: Sequence[Array]) -> Array:
    stack = np.stack(values)
    return stack.astype(np.int32) if stack.dtype.kind == "i" else stack


def router_of_groups(router: Router[Any], of_all: Router[Any]) -> Router[Any]:
    """Returns a router that runs a router of the specification group by group, as the reference for compiled backends.

    If the balance loss spans several groups, the router `of_all` runs instead. Like compiled routers, `of_all` combines batched functions.
    """

    def route(
        params: Params,
        tokens: Array,
        options: Any,
        *,
        noise: Array | None = None,
        train: bool = False,
        state: State | None = None,
        **needed: Any,
    ) -> RouterOutput:
        if getattr(options, "balance_scope", "group") != "group":
            return of_all.route(params, tokens, options, state=state, noise=noise, train=train, **needed)
        outputs = [
            router.route(params, options=options, state=state, train=train, **group)
            for group in groups(tokens=tokens, noise=noise, **needed)
        ]
        routings = [output.routing for output in outputs]
        # A `SlotRouting` cannot store a slot that mixes several tokens.
        is_dense = any((np.count_nonzero(routing.dispatch, axis=0) > 1).any() for routing in routings)
        return RouterOutput(
            together(routings, is_dense=is_dense),
            together([output.losses for output in outputs]),
            together([output.metrics for output in outputs]),
            summed([output.statistics for output in outputs]),
        )

    return replace(router, route=route)


def routers_of_groups(B: Any) -> Routers:
    """Returns the specification's routers by name, for the backend `B`. Losses and metrics are means over the groups."""
    of_all = composed(B)

    def own(name: str, router: Router[Any]) -> Router[Any]:
        return router_of_groups(router, of_all[name] if router.compose else router)

    routers = {name: router_of_groups(router, of_all[name]) for name, router in spec.ROUTERS.items()}
    return Routers(routers, own)
