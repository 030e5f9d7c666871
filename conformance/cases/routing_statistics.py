"""Statistics of routings and of the slots of Soft MoE."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.describe import Function, Output
from moespec.conformance.author.draw import grid
from moespec.conformance.author.inputs import scores
from moespec.conformance.author.variant import variant

__all__ = ["FUNCTIONS", "VARIANTS", "cases"]

NAME = "routing_statistics"
COUNTS = ("experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4")
FUNCTIONS = (
    Function("collapse_metrics", {name: Output(scale="unit") for name in ("dispatch_max", "combine_max")}),
    Function("summed_dispatch", {"sums": Output("groups tokens", scale="unit")}),
    Function("cumulative_dispatch", {"sums": Output("groups tokens", scale="unit")}),
    Function("experts_per_token", {name: Output(scale="unit") for name in COUNTS}),
    Function("slot_similarity", {"products": Output("slots slots", scale="unit")}),
)
G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    slots = tensor(grid("statistics/slots", (D, E, 2)), "width experts capacity")
    tokens = tensor(grid("statistics/tokens", (1, T, D)), "groups tokens width")
    scale = tensor(np.float32(4), "")
    inputs = {"tokens": tokens, "slots": slots, "scale": scale}
    soft = call("soft_routing", {name: name for name in inputs})
    of = {"routing": "soft_routing"}
    stages = (soft, *(call(name, of) for name in ("collapse_metrics", "summed_dispatch", "cumulative_dispatch")))
    yield composed(NAME, "soft", "value", "A soft routing with sharp weights.", inputs=inputs, stages=stages)
    yield _chosen("experts", "Tokens in no expert, in some, and in all four.", (G, T, 4), capacity=3)
    purpose = "Empty slots have no weight."
    yield _chosen("empty", purpose, (G, T, E), capacity=4, holes=True, drop_zero=True)
    yield single(NAME, "slot_similarity", "slots", "value", "Two slots for each expert.", slots=slots)


def _chosen(name: str, purpose: str, shape: tuple[int, int, int], *, holes: bool = False, **options: Any) -> Definition:
    values = scores(f"statistics/{name}", shape)
    if holes:
        values = tensor(
            np.where(grid(f"statistics/{name}/holes", shape) > 0.25, values.array, 0), "groups tokens experts"
        )
    stages = (
        call("expert_choice", {"scores": "scores"}, **options),
        *(
            call(each, {"routing": "expert_choice"})
            for each in ("experts_per_token", "collapse_metrics", "summed_dispatch", "cumulative_dispatch")
        ),
    )
    return composed(NAME, name, "value", purpose, inputs={"scores": values}, stages=stages)


# Variants.


def largest_of_each_token(B: Any, routing: Any) -> Any:
    """The largest dispatch weight is that of each token, not of each slot."""
    found = B.collapse_metrics(routing)
    return {**found, "dispatch_max": np.mean(routing.dense().dispatch.max(axis=(2, 3)))}


def largest_of_each_slot(B: Any, routing: Any) -> Any:
    """The largest combine weight is that of each slot, not of each token."""
    found = B.collapse_metrics(routing)
    return {**found, "combine_max": np.mean(routing.dense().combine.max(axis=1))}


def summed_combine(B: Any, routing: Any) -> Any:
    """The contribution of a token is the sum of its combine weights."""
    return routing.dense().combine.sum(axis=(2, 3))


def mean_dispatch(B: Any, routing: Any) -> Any:
    """The contribution of a token is the mean over the slots, not the sum."""
    return B.summed_dispatch(routing) / routing.dense().dispatch[0, 0].size


def in_the_order_of_tokens(B: Any, routing: Any) -> Any:
    """The cumulative weight takes tokens in their order, not that of their weights."""
    return np.cumsum(routing.dense().dispatch, axis=1).mean(axis=(2, 3))


def more_than_so_many(B: Any, routing: Any) -> Any:
    """At least so many experts means more than that."""
    found, count = B.experts_per_token(routing), (routing.dense().dispatch > 0).any(axis=3).sum(axis=2)
    return {**found, **{f"at_least_{n}": np.mean(count > n) for n in (1, 2, 4)}}


def covered_tokens_only(B: Any, routing: Any) -> Any:
    """The least number of experts is that of the tokens which have one."""
    found, count = B.experts_per_token(routing), (routing.dense().dispatch > 0).any(axis=3).sum(axis=2)
    return {**found, "experts_min": np.mean(np.where(count > 0, count, 10**6).min(axis=1))}


def most_of_all_groups(B: Any, routing: Any) -> Any:
    """The least and the largest number of experts are those of all groups, not means over them."""
    found, count = B.experts_per_token(routing), (routing.dense().dispatch > 0).any(axis=3).sum(axis=2)
    return {**found, "experts_min": np.float64(count.min()), "experts_max": np.float64(count.max())}


def slots_not_normalised(B: Any, slots: Any) -> Any:
    """The inner products are those of the slots as they are."""
    B.slot_similarity(slots)
    return np.einsum("di,dj->ij", slots.reshape(len(slots), -1), slots.reshape(len(slots), -1))


VARIANTS = (
    variant(largest_of_each_token, "collapse_metrics"),
    variant(largest_of_each_slot, "collapse_metrics"),
    variant(summed_combine, "summed_dispatch"),
    variant(mean_dispatch, "summed_dispatch"),
    variant(in_the_order_of_tokens, "cumulative_dispatch"),
    variant(more_than_so_many, "experts_per_token"),
    variant(covered_tokens_only, "experts_per_token"),
    variant(most_of_all_groups, "experts_per_token"),
    variant(slots_not_normalised, "slot_similarity"),
)
