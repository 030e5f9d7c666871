"""Allocations: scores to slots, by Token Choice (Algorithm 1), in any order or among the most important, and Expert
Choice (2).

Shape comments: G groups, T tokens, E experts, C capacity, K choices. Selections carry no gradient; weights do.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, top_indices, top_values, wide
from moespec.backends.jax.gathers import slot_weights, take_rows
from moespec.backends.jax.slots import SlotRouting
from moespec.spec.checks import (
    check_capacity,
    check_choices,
    check_mask,
    check_non_negative,
    check_one_per_token,
    check_option,
    check_same_shape,
    check_scores,
    check_size,
    check_tries,
)
from moespec.spec.importance_score import surviving_tokens
from moespec.spec.selected_weights import NORMS
from moespec.spec.token_choice import check_slot_order

__all__ = [
    "batch_priority",
    "expert_choice",
    "gshard_keep",
    "importance_score_choice",
    "importance_score_order",
    "normalize_selected",
    "token_choice",
]

ONE_HOT_EXPERTS = 32
"""Up to this many experts, positions come from a one-hot cumulative sum; beyond, from a sort."""


def batch_priority(scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """scores (G, T, E) -> (G, T) int32."""
    check_scores("scores", scores, "groups tokens experts")
    check_option("by", by, ("max", "sum"))
    choices = check_choices(choices, scores.shape[2])
    best = top_values(wide(scores), choices if by == "sum" else 1)
    return jnp.argsort(-jnp.sum(best, axis=2), axis=1, stable=True).astype(jnp.int32)


def normalize_selected(
    scores: Array, combine_scores: Array | None = None, *, choices: int, norm: str = "sum", epsilon: float = 0.0
) -> Array:
    """scores and combine_scores (G, T, E) -> (G, T, E)."""
    weights = _checked(scores, combine_scores)
    choices = check_choices(choices, scores.shape[2])
    check_option("norm", norm, NORMS)
    epsilon = check_non_negative("epsilon", epsilon)
    return _divided(weights, is_chosen(top_indices(wide(scores), choices), scores.shape[2]), norm, epsilon)


def _divided(weights: Array, chosen: Array, norm: str, epsilon: float = 0.0) -> Array:
    """Weights by the sum or norm, and epsilon, of those that are chosen, where a token has any: all (G, T, E)."""
    of_them = jnp.where(chosen, weights, 0)
    total = jnp.sum(of_them if norm == "sum" else jnp.square(of_them), axis=2, keepdims=True)
    total = jnp.where(jnp.any(chosen, axis=2, keepdims=True), total, 1)
    return weights / ((total if norm == "sum" else jnp.sqrt(total)) + epsilon)


def is_chosen(chosen: Array, experts: int) -> Array:
    """Whether an expert is among those of the token: (G, T, K) indices to (G, T, E)."""
    return jnp.any(chosen[..., None] == jnp.arange(experts, dtype=chosen.dtype), axis=2)


def gshard_keep(gates: Array, noise: Array) -> Array:
    """gates (G, T, E), noise (G, T) -> (G, T, 2) booleans."""
    check_scores("gates", gates, "groups tokens experts")
    check_scores("noise", noise, "groups tokens")
    check_choices(2, gates.shape[2])
    check_size("noise", noise, 0, gates.shape[0], "the groups of gates")
    check_size("noise", noise, 1, gates.shape[1], "the tokens of gates")
    second = top_values(wide(gates), 2)[..., 1]
    return jnp.stack([jnp.ones(second.shape, bool), 2 * second > wide(noise)], axis=2)


def token_choice(
    scores: Array,
    *,
    choices: int,
    capacity: int,
    combine_scores: Array | None = None,
    order: Array | None = None,
    keep: Array | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> SlotRouting:
    """scores and combine_scores (G, T, E), order (G, T) integers, keep (G, T, tries) booleans -> SlotRouting.

    That `order` is a permutation is not checked.
    """
    combine_scores = _checked(scores, combine_scores)
    if order is not None:
        check_one_per_token("order", order, scores.shape[:2])
        order = jnp.asarray(order).astype(jnp.int32)
    return _serve(
        scores, combine_scores, choices, capacity, order, scores.shape[1], keep, hold, tries, slot_order, normalize
    )


def importance_score_order(scores: Array, *, drop: float = 0.1) -> Array:
    """scores (G, T, E) -> (G, survivors) int32."""
    order = batch_priority(scores)
    return order[:, : surviving_tokens(order.shape[1], drop)]


def importance_score_choice(
    scores: Array,
    *,
    choices: int,
    capacity: int,
    drop: float = 0.1,
    combine_scores: Array | None = None,
) -> SlotRouting:
    """scores and combine_scores (G, T, E) -> SlotRouting."""
    combine_scores = _checked(scores, combine_scores)
    left = surviving_tokens(scores.shape[1], drop)
    return _serve(scores, combine_scores, choices, capacity, batch_priority(scores), left)


def _serve(
    scores: Array,
    combine_scores: Array,
    choices: int,
    capacity: int,
    order: Array | None,
    kept: int,
    keep: Array | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> SlotRouting:
    """Token Choice of the first `kept` tokens in `order` (groups, tokens), which all the others come after."""
    groups, tokens, experts = scores.shape
    choices = check_choices(choices, experts)
    capacity = check_capacity(capacity)
    tries = check_tries(tries, choices, experts)
    check_slot_order(slot_order, tries, choices)
    slots = experts * capacity

    # Selection.
    best = top_indices(wide(scores), tries)
    if keep is not None:
        check_mask("keep", keep, (groups, tokens, tries), "choice")
    line = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), (groups, tokens))
    if order is not None:
        line = order[:, :kept]
        best = take_rows(best, line)
        keep = None if keep is None else take_rows(keep, line)

    # Slots.
    slot = _slots_in_stages(best, keep, hold, choices, experts, capacity, by_token=slot_order == "token")
    by_choice = jnp.swapaxes(slot, 1, 2).reshape(groups, choices * kept)
    token = invert(by_choice, jnp.tile(line, (1, choices)), slots, fill=tokens).reshape(groups, experts, capacity)
    if order is not None:
        of_others = jnp.full((groups, tokens - kept, choices), slots, slot.dtype)
        of_all = jnp.concatenate([slot, of_others], axis=1)
        slot = take_rows(of_all, jnp.argsort(order, axis=1).astype(jnp.int32))

    # Weights. The slot of a choice that got none is that of an expert E.
    if normalize is not None:
        check_option("normalize", normalize, NORMS)
        combine_scores = _divided(combine_scores, is_chosen(slot // capacity, experts), normalize)
    return SlotRouting(token, slot_weights(tokens, combine_scores, token, slot), slot, tokens)


def _slots_in_stages(
    best: Array, keep: Array | None, hold: bool, choices: int, experts: int, capacity: int, *, by_token: bool
) -> Array:
    """The slots `e * C + c` of each token: (G, N, K) int32, E * C for a choice without one.

    best: (G, N, tries) int32, the experts that a token tries, best first. keep: booleans of that shape.

    by_token: whether a token makes its requests before the next one, in the one stage that there is then.

    The first K stages are one, since no token has K experts before they end.
    """
    groups, tokens, tries = best.shape
    slots = experts * capacity
    filled = jnp.zeros((groups, experts + 1), jnp.int32)  # the last is not an expert
    stages_of_slots: list[Array] = []
    for first, last in [(0, choices), *((stage, stage + 1) for stage in range(choices, tries))]:
        asked = best[:, :, first:last]
        mask = None if keep is None else keep[:, :, first:last]
        if mask is not None and not hold:
            asked = jnp.where(mask, asked, experts)
        if stages_of_slots:
            has = jnp.sum(jnp.concatenate(stages_of_slots, axis=2) < slots, axis=2, keepdims=True)
            asked = jnp.where(has < choices, asked, experts)
        requests = (asked if by_token else jnp.swapaxes(asked, 1, 2)).reshape(groups, -1)
        place = position_in_expert(requests, experts)
        if stages_of_slots:
            place = place + jnp.take_along_axis(filled, requests, axis=1)
        slot = slots_of_places(requests, place, experts, capacity)
        slot = slot.reshape(groups, tokens, -1) if by_token else jnp.swapaxes(slot.reshape(groups, -1, tokens), 1, 2)
        stages_of_slots.append(slot if mask is None or not hold else jnp.where(mask, slot, slots))
        if last < tries:
            asks = jax.vmap(lambda n: jnp.bincount(n, length=experts + 1))(requests)
            filled = jnp.minimum(filled + asks.astype(jnp.int32), capacity)
    if tries == choices:
        return stages_of_slots[0]
    return jnp.sort(jnp.concatenate(stages_of_slots, axis=2), axis=2)[:, :, :choices]


def expert_choice(
    scores: Array, *, capacity: int, combine_scores: Array | None = None, drop_zero: bool = False
) -> SlotRouting:
    """scores and combine_scores (G, T, E) -> SlotRouting with `slot` None."""
    combine_scores = _checked(scores, combine_scores)
    tokens = scores.shape[1]
    capacity = check_capacity(capacity, tokens)
    columns = jnp.swapaxes(lax.stop_gradient(wide(scores)), 1, 2)
    token = top_indices(columns, capacity)
    if drop_zero:
        token = jnp.where(jnp.take_along_axis(columns, token, axis=2) > 0, token, tokens)
    return SlotRouting(token, slot_weights(tokens, combine_scores, token, None), None, tokens)


def slots_of_requests(requests: Array, experts: int, capacity: int) -> Array:
    """The slot `e * C + c` of each request for an expert, E * C for one that finds it full or requests no expert (E).

    requests: (G, N) int32; returns the same.
    """
    return slots_of_places(requests, position_in_expert(requests, experts), experts, capacity)


def slots_of_places(requests: Array, place: Array, experts: int, capacity: int) -> Array:
    """The slot `e * C + c` of each request for an expert that has place `c` in line; E * C where there is none."""
    slots = experts * capacity
    return jnp.minimum(jnp.where(place < capacity, requests * capacity + place, slots), slots)


def routing_of_requests(requests: Array, experts: int, capacity: int) -> tuple[Array, Array]:
    """The token in each slot (G, E, C), and the slot of each token (G, T), where each requests one expert, in order."""
    groups, tokens = requests.shape
    slot = slots_of_requests(requests, experts, capacity)
    source = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), (groups, tokens))
    token = invert(slot, source, experts * capacity, fill=tokens)
    return token.reshape(groups, experts, capacity), slot


def position_in_expert(requests: Array, experts: int) -> Array:
    """How many earlier requests of the group went to the same expert. requests: (G, N) int32; returns the same."""
    return (position_by_sum if experts <= ONE_HOT_EXPERTS else position_by_sort)(requests, experts)


def position_by_sum(requests: Array, experts: int) -> Array:
    """`position_in_expert` by a cumulative sum of one-hot rows: (G, N, E) integers."""
    one_hot = (requests[..., None] == jnp.arange(experts, dtype=requests.dtype)).astype(jnp.int32)
    return jnp.sum((jnp.cumsum(one_hot, axis=1) - 1) * one_hot, axis=2)


def position_by_sort(requests: Array, experts: int) -> Array:
    """`position_in_expert` by a stable sort of the expert ids."""
    number = lax.broadcasted_iota(jnp.int32, requests.shape, 1)
    by_expert, source = lax.sort((requests, number), dimension=1, num_keys=1, is_stable=True)
    is_first = jnp.concatenate(
        [jnp.ones_like(by_expert[:, :1], dtype=bool), by_expert[:, 1:] != by_expert[:, :-1]], axis=1
    )
    first = lax.cummax(jnp.where(is_first, number, 0), axis=1)
    return invert(source, number - first, requests.shape[1], fill=0)


def invert(index: Array, value: Array, size: int, *, fill: int) -> Array:
    """`out[g, index[g, n]] = value[g, n]`, `fill` elsewhere: (G, N) to (G, size). An index of `size` writes nothing."""
    # The unused writes get a place of their own past the end, so that all indices are unique.
    index = jnp.where(index < size, index, size + lax.broadcasted_iota(jnp.int32, index.shape, 1))
    empty = jnp.full((size,), fill, value.dtype)
    return jax.vmap(lambda i, v: empty.at[i].set(v, mode="drop", unique_indices=True))(index, value)


def _checked(scores: Array, combine_scores: Array | None) -> Array:
    """The combine scores (default: `scores`) in float32 or better, after the checks of both."""
    check_scores("scores", scores, "groups tokens experts")
    if combine_scores is None:
        return wide(scores)
    check_scores("combine_scores", combine_scores, "groups tokens experts")
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    return wide(combine_scores)
