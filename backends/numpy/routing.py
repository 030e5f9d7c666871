"""The specification behind the batched names: each function runs the specification on every group and stacks.

Arrays have a leading groups axis (G). The formulas, arguments and errors are those of the function of the same name in
`moespec.spec`; only shapes and what differs are said here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from moespec import spec
from moespec.spec.checks import check_rank, check_size
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import stable_order
from moespec.spec.routing import Params, Routing

__all__ = [
    "SlotRouting",
    "SoftRouting",
    "add_gating_noise",
    "balance_loss",
    "batch_priority",
    "expert_choice",
    "expert_mlp",
    "gshard_keep",
    "importance_loss",
    "importance_score_choice",
    "importance_score_order",
    "load_loss",
    "moe_layer",
    "noisy_top_k_affinity",
    "noisy_top_k_load_loss",
    "noisy_top_k_logits",
    "normalize_selected",
    "project_simplex",
    "project_sparse_simplex",
    "rescale",
    "router_jitter",
    "router_logits",
    "routing_metrics",
    "sigmoid_affinity",
    "sinkhorn_affinity",
    "soft_routing",
    "softmax_affinity",
    "sparse_transport_affinity",
    "token_choice",
    "transport_dual",
    "transport_semi_dual",
    "z_loss",
]

Array = Any


class SlotRouting(NamedTuple):
    """A sparse routing by slot.

    token: (G, E, C) int32, the token in each slot, or `tokens` for an empty slot.
    weight: (G, E, C), its combine weight, 0 for an empty slot.
    slot: (G, T, K) int32, the slot `e * C + c` of each choice of a token, or `E * C` when it was dropped; None when a
        token may sit in any number of slots, and from `ROUTERS`, which make the record from the dense routing.
    tokens: T.
    """

    token: Array
    weight: Array
    slot: Array | None
    tokens: int

    def dense(self) -> Routing:
        """The tensors of the papers, each (G, T, E, C)."""
        dispatch = (self.token[:, None] == np.arange(self.tokens)[:, None, None]).astype(np.float64)
        return Routing(dispatch, dispatch * self.weight[:, None])


class SoftRouting(NamedTuple):
    """A routing that is dense by nature: `dispatch` and `combine`, each (G, T, E, C)."""

    dispatch: Array
    combine: Array

    def dense(self) -> Routing:
        """The same as the specification's record."""
        return Routing(self.dispatch, self.combine)


def by_slot(routings: list[Routing]) -> SlotRouting:
    """The record of the dense sparse routings of all groups."""
    token = np.stack([spec.slot_tokens(routing) for routing in routings]).astype(np.int32)
    weight = np.stack([routing.combine.sum(axis=0) for routing in routings])  # a slot holds at most one token
    return SlotRouting(token, weight, None, len(routings[0].dispatch))


def stacked(results: list[Any]) -> Any:
    """One array (or tuple or dict of arrays) from those of the groups."""
    first = results[0]
    if isinstance(first, dict):
        return {name: np.stack([result[name] for result in results]) for name in first}
    if isinstance(first, tuple):
        return type(first)(*map(np.stack, zip(*results, strict=True)))
    return np.stack(results)


def groups(**arrays: Any) -> list[dict[str, Any]]:
    """The arguments of each group: row g of every array; None stays None. Raises ShapeError when there are no rows."""
    first_name, first = next((name, np.asarray(array)) for name, array in arrays.items() if array is not None)
    if first.ndim < 1 or not len(first):
        raise ShapeError(f"{first_name}: expected a leading axis of at least one group, got shape {first.shape}")
    for name, array in arrays.items():
        if array is not None and len(array) != len(first):
            raise ShapeError(f"{name}: {len(array)} groups, but {first_name} has {len(first)}")
    return [
        {name: None if array is None else np.asarray(array)[g] for name, array in arrays.items()}
        for g in range(len(first))
    ]


def router_logits(tokens: Array, kernel: Array) -> Array:
    """`spec.router_logits`: tokens (G, T, D), kernel (D, E) -> (G, T, E)."""
    return stacked([spec.router_logits(**group, kernel=kernel) for group in groups(tokens=tokens)])


def router_jitter(tokens: Array, noise: Array | None, *, epsilon: float = 0.01) -> Array:
    """`spec.router_jitter`: tokens and noise (G, T, D) -> (G, T, D)."""
    return stacked([spec.router_jitter(**group, epsilon=epsilon) for group in groups(tokens=tokens, noise=noise)])


def add_gating_noise(logits: Array, noise: Array | None, *, multiplier: float = 1.0) -> Array:
    """`spec.add_gating_noise`: logits and noise (G, T, E) -> (G, T, E)."""
    return stacked(
        [spec.add_gating_noise(**group, multiplier=multiplier) for group in groups(logits=logits, noise=noise)]
    )


def softmax_affinity(logits: Array) -> Array:
    """`spec.softmax_affinity`: (G, T, E) -> (G, T, E)."""
    return stacked([spec.softmax_affinity(**group) for group in groups(logits=logits)])


def sigmoid_affinity(logits: Array) -> Array:
    """`spec.sigmoid_affinity`: (G, T, E) -> (G, T, E)."""
    return stacked([spec.sigmoid_affinity(**group) for group in groups(logits=logits)])


def sinkhorn_affinity(logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """`spec.sinkhorn_affinity`: (G, T, E) -> (G, T, E); with a tolerance each group stops on its own."""
    return stacked(
        [spec.sinkhorn_affinity(**group, iterations=iterations, tolerance=tolerance) for group in groups(logits=logits)]
    )


def sparse_transport_affinity(utility: Array, *, capacity: int, **options: Any) -> Array:
    """`spec.sparse_transport_affinity`, with both of its solvers: (G, T, E) -> (G, T, E)."""
    return stacked(
        [spec.sparse_transport_affinity(**group, capacity=capacity, **options) for group in groups(utility=utility)]
    )


def transport_semi_dual(
    potential: Array, utility: Array, *, capacity: int, regularization: float = 1.0
) -> spec.SemiDual:
    """`spec.transport_semi_dual`: potential (G, T), utility (G, T, E); every field gets a leading G."""
    arrays = groups(potential=potential, utility=utility)
    return spec.SemiDual(
        *stacked(
            [spec.transport_semi_dual(**group, capacity=capacity, regularization=regularization) for group in arrays]
        )
    )


def transport_dual(
    token_potential: Array,
    expert_potential: Array,
    utility: Array,
    *,
    capacity: int,
    regularization: float = 1.0,
) -> spec.Dual:
    """`spec.transport_dual`: potentials (G, T) and (G, E), utility (G, T, E); every field gets a leading G."""
    arrays = groups(token_potential=token_potential, expert_potential=expert_potential, utility=utility)
    return spec.Dual(
        *stacked([spec.transport_dual(**group, capacity=capacity, regularization=regularization) for group in arrays])
    )


def project_simplex(values: Array, *, mass: float = 1.0) -> Array:
    """`spec.project_simplex` along the last axis: (..., n) -> (..., n)."""
    return _rows(lambda row: spec.project_simplex(row, mass=mass), values)


def project_sparse_simplex(values: Array, *, nonzeros: int, mass: float = 1.0) -> Array:
    """`spec.project_sparse_simplex` along the last axis: (..., n) -> (..., n)."""
    return _rows(lambda row: spec.project_sparse_simplex(row, nonzeros=nonzeros, mass=mass), values)


def _rows(function: Callable[[Array], Array], values: Array) -> Array:
    values = np.asarray(values)
    if values.ndim < 1 or values.size == 0:
        raise ShapeError(f"values: expected at least one value, got shape {values.shape}")
    return np.stack([function(row) for row in values.reshape(-1, values.shape[-1])]).reshape(values.shape)


def batch_priority(scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """`spec.batch_priority`: (G, T, E) -> (G, T) int32."""
    orders = [spec.batch_priority(**group, by=by, choices=choices) for group in groups(scores=scores)]
    return stacked(orders).astype(np.int32)


def normalize_selected(scores: Array, combine_scores: Array | None = None, *, choices: int) -> Array:
    """`spec.normalize_selected`: (G, T, E) -> (G, T, E)."""
    arrays = groups(scores=scores, combine_scores=combine_scores)
    return stacked([spec.normalize_selected(**group, choices=choices) for group in arrays])


def gshard_keep(gates: Array, noise: Array) -> Array:
    """`spec.gshard_keep`: gates (G, T, E), noise (G, T) -> (G, T, 2) booleans."""
    return stacked([spec.gshard_keep(**group) for group in groups(gates=gates, noise=noise)])


def token_choice(
    scores: Array,
    *,
    choices: int,
    capacity: int,
    combine_scores: Array | None = None,
    order: Array | None = None,
    keep: Array | None = None,
) -> SlotRouting:
    """`spec.token_choice`: scores and combine_scores (G, T, E), order (G, T), keep (G, T, K)."""
    arrays = groups(scores=scores, combine_scores=combine_scores, order=order, keep=keep)
    routings = [spec.token_choice(**group, choices=choices, capacity=capacity) for group in arrays]
    return _by_choice(routings, scores, choices)


def importance_score_order(scores: Array, *, drop: float = 0.1) -> Array:
    """`spec.importance_score_order`: (G, T, E) -> (G, survivors) int32."""
    return stacked([spec.importance_score_order(**group, drop=drop) for group in groups(scores=scores)]).astype(
        np.int32
    )


def importance_score_choice(
    scores: Array, *, choices: int, capacity: int, drop: float = 0.1, combine_scores: Array | None = None
) -> SlotRouting:
    """`spec.importance_score_choice`: scores and combine_scores (G, T, E)."""
    arrays = groups(scores=scores, combine_scores=combine_scores)
    routings = [
        spec.importance_score_choice(**group, choices=choices, capacity=capacity, drop=drop) for group in arrays
    ]
    return _by_choice(routings, scores, choices)


def _by_choice(routings: list[Routing], scores: Array, choices: int) -> SlotRouting:
    """`by_slot` where tokens choose: the record has the slots of their choices, too."""
    slots = [slot_of_choices(routing, stable_order(scores[g])[:, :choices]) for g, routing in enumerate(routings)]
    return by_slot(routings)._replace(slot=np.stack(slots))


def slot_of_choices(routing: Routing, chosen: Array) -> Array:
    """(T, K) int32: where each chosen expert put the token, from the dense dispatch and `chosen` (T, K)."""
    experts, capacity = routing.dispatch.shape[1:]
    slots = np.take_along_axis(routing.dispatch, chosen[:, :, None], axis=1)  # (T, K, C)
    return np.where(slots.any(axis=2), chosen * capacity + slots.argmax(axis=2), experts * capacity).astype(np.int32)


def expert_choice(
    scores: Array, *, capacity: int, combine_scores: Array | None = None, drop_zero: bool = False
) -> SlotRouting:
    """`spec.expert_choice`: scores and combine_scores (G, T, E)."""
    arrays = groups(scores=scores, combine_scores=combine_scores)
    return by_slot([spec.expert_choice(**group, capacity=capacity, drop_zero=drop_zero) for group in arrays])


def soft_routing(tokens: Array, slots: Array, **options: Any) -> SoftRouting:
    """`spec.soft_routing`: tokens (G, T, D), slots (D, E, C), shared by the groups as is `scale`."""
    return SoftRouting(
        *stacked([spec.soft_routing(**group, slots=slots, **options) for group in groups(tokens=tokens)])
    )


def noisy_top_k_logits(logits: Array, noise_logits: Array, noise: Array | None) -> Array:
    """`spec.noisy_top_k_logits`: (G, T, E) each -> (G, T, E)."""
    arrays = groups(logits=logits, noise_logits=noise_logits, noise=noise)
    return stacked([spec.noisy_top_k_logits(**group) for group in arrays])


def noisy_top_k_affinity(noisy_logits: Array, *, choices: int) -> Array:
    """`spec.noisy_top_k_affinity`: (G, T, E) -> (G, T, E)."""
    arrays = groups(noisy_logits=noisy_logits)
    return stacked([spec.noisy_top_k_affinity(**group, choices=choices) for group in arrays])


def importance_loss(scores: Array) -> Array:
    """`spec.importance_loss`, its mean over the groups: (G, T, E) -> a number."""
    return np.mean([spec.importance_loss(**group) for group in groups(scores=scores)])


def load_loss(logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """`spec.load_loss`, its mean over the groups: (G, T, E) twice -> a number."""
    arrays = groups(logits=logits, noisy_logits=noisy_logits)
    return np.mean([spec.load_loss(**group, choices=choices, noise_std=noise_std) for group in arrays])


def noisy_top_k_load_loss(logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Array:
    """`spec.noisy_top_k_load_loss`, its mean over the groups: (G, T, E) each -> a number."""
    arrays = groups(logits=logits, noise_logits=noise_logits, noisy_logits=noisy_logits)
    return np.mean([spec.noisy_top_k_load_loss(**group, choices=choices) for group in arrays])


def balance_loss(scores: Array) -> Array:
    """`spec.balance_loss`, its mean over the groups: (G, T, E) -> a number."""
    return np.mean([spec.balance_loss(**group) for group in groups(scores=scores)])


def z_loss(logits: Array) -> Array:
    """`spec.z_loss`, its mean over the groups: (G, T, E) -> a number."""
    return np.mean([spec.z_loss(**group) for group in groups(logits=logits)])


def routing_metrics(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """`spec.routing_metrics`, each the mean over the groups."""
    return group_mean([spec.routing_metrics(Routing(*pair)) for pair in zip(*routing.dense(), strict=True)])


def group_mean(values: list[dict[str, Array]]) -> dict[str, Array]:
    """The mean over the groups of each named value."""
    return {name: sum((value[name] for value in values[1:]), values[0][name]) / len(values) for name in values[0]}


def expert_mlp(inputs: Array, params: Params, *, gelu: str = "tanh", used: Array | None = None) -> Array:
    """`spec.expert_mlp`: inputs (G, E, C, D) -> (G, E, C, D'); the experts, and which to run, are those of all groups."""
    return stacked([spec.expert_mlp(**group, params=params, gelu=gelu, used=used) for group in groups(inputs=inputs)])


def rescale(x: Array, params: Params) -> Array:
    """`spec.rescale`: (N, S, C) -> (N, S', C'); the maps are shared by the images."""
    return stacked([spec.rescale(**group, params=params) for group in groups(x=x)])


def moe_layer(tokens: Array, routing: SlotRouting | SoftRouting, experts: Callable[[Array], Array]) -> Array:
    """`spec.moe_layer`: tokens (G, T, D), `experts` from (G, E, C, D) to (G, E, C, D') -> (G, T, D')."""
    check_rank("tokens", tokens, "groups tokens width")
    dense = routing.dense()
    check_size("tokens", tokens, 0, len(dense.dispatch), "the groups of routing")

    def experts_of_one(inputs: Array) -> Array:
        outputs = experts(inputs[None])
        check_rank("experts", outputs, "groups experts capacity width")
        return outputs[0]

    return stacked(
        [
            spec.moe_layer(group, Routing(*pair), experts_of_one)
            for group, pair in zip(tokens, zip(*dense, strict=True), strict=True)
        ]
    )
