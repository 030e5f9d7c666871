"""Allocations, which turn scores into slots: Token Choice (Algorithm 1) and Expert Choice (Algorithm 2). Token Choice serves either
all tokens or only the most important tokens.

Selected indices are integers without gradients, and weights carry gradients. Ties go to the lower index.
"""

from typing import Any

from moespec.backends.common.namespace import Array, BySlot, Dense, Namespace, RoutingNamespace
from moespec.backends.contract import filled_alone
from moespec.spec.algorithms.importance_score import surviving_tokens
from moespec.spec.algorithms.selected_weights import NORMS
from moespec.spec.algorithms.token_choice import check_slot_order
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

__all__ = [
    "batch_priority",
    "expert_choice",
    "gshard_keep",
    "importance_score_choice",
    "importance_score_order",
    "normalize_selected",
    "token_choice",
]

AXES = "groups tokens experts"


def batch_priority(xp: Namespace[Array], scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """scores (G, T, E) -> (G, T) int32."""
    check_scores("scores", scores, AXES)
    check_option("by", by, ("max", "sum"))
    choices = check_choices(choices, scores.shape[2])
    return xp.argsort(-xp.sum(xp.top_values(xp.promote(scores), choices if by == "sum" else 1), 2))


def normalize_selected(
    xp: Namespace[Array],
    scores: Array,
    combine_scores: Array | None = None,
    *,
    choices: int,
    norm: str = "sum",
    epsilon: float = 0.0,
) -> Array:
    """scores and combine_scores (G, T, E) -> (G, T, E)."""
    weights = _checked(xp, scores, combine_scores)
    choices = check_choices(choices, scores.shape[2])
    check_option("norm", norm, NORMS)
    epsilon = check_non_negative("epsilon", epsilon)
    return _divided(xp, weights, xp.top_indices(xp.promote(scores), choices), norm, epsilon)


def _divided(
    xp: Namespace[Array], weights: Array, chosen: Array, norm: str, epsilon: float = 0.0, *, after: bool = False
) -> Array:
    """Divides each token's weights (G, T, E) by the sum or norm of its chosen weights, plus epsilon. If `after`, E means no expert."""
    is_chosen = xp.is_chosen(chosen, weights)
    of_them = xp.where(is_chosen, weights, 0.0)
    total = xp.sum(of_them if norm == "sum" else xp.square(of_them), 2, keepdims=True)
    if after:  # the slots of all choices of a token may be taken
        total = xp.where(xp.max(xp.cast(is_chosen, weights.dtype), 2, keepdims=True) > 0, total, 1.0)
    total = total if norm == "sum" else xp.sqrt(total)
    if not epsilon:
        return weights / total
    # The derivative divides by the square of the divisor. For a divisor of 1e-20, this square underflows in float32.
    scale = xp.where(total < 2.0**-32, 2.0**64, 1.0)
    return (weights * scale) / ((total + epsilon) * scale)


def gshard_keep(xp: Namespace[Array], gates: Array, noise: Array) -> Array:
    """gates (G, T, E), noise (G, T) -> (G, T, 2) booleans."""
    check_scores("gates", gates, AXES)
    check_scores("noise", noise, "groups tokens")
    check_choices(2, gates.shape[2])
    check_size("noise", noise, 0, gates.shape[0], "the groups of gates")
    check_size("noise", noise, 1, gates.shape[1], "the tokens of gates")
    kept = 2 * xp.top_values(xp.promote(gates), 2)[..., 1] > xp.promote(noise)
    return xp.stack([xp.full(kept.shape, True, kept), kept], 2)


def token_choice(
    xp: RoutingNamespace[Array, BySlot, Dense],
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
) -> BySlot:
    """scores and combine_scores (G, T, E), order (G, T) integers, keep (G, T, tries) booleans -> SlotRouting.

    The function does not check that `order` is a permutation.
    """
    combine_scores = _checked(xp, scores, combine_scores)
    if order is not None:
        check_one_per_token("order", order, tuple(scores.shape[:2]))
        order = xp.cast(order, "int32")
    served = scores.shape[1]
    return _serve(
        xp, scores, combine_scores, choices, capacity, order, served, keep, hold, tries, slot_order, normalize
    )


def importance_score_order(xp: Namespace[Array], scores: Array, *, drop: float = 0.1) -> Array:
    """scores (G, T, E) -> (G, survivors) int32."""
    order = batch_priority(xp, scores)
    return order[:, : surviving_tokens(order.shape[1], drop)]


def importance_score_choice(
    xp: RoutingNamespace[Array, BySlot, Dense],
    scores: Array,
    *,
    choices: int,
    capacity: int,
    drop: float = 0.1,
    combine_scores: Array | None = None,
) -> BySlot:
    """scores and combine_scores (G, T, E) -> SlotRouting."""
    combine_scores = _checked(xp, scores, combine_scores)
    left = surviving_tokens(scores.shape[1], drop)
    return _serve(xp, scores, combine_scores, choices, capacity, batch_priority(xp, scores), left)


def _serve(
    xp: RoutingNamespace[Array, BySlot, Dense],
    scores: Array,
    combine_scores: Array,
    choices: int,
    capacity: int,
    order: Array | None,
    served: int,
    keep: Array | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> BySlot:
    """Applies Token Choice to the first `served` tokens in `order` (G, T). The remaining tokens get no slot."""
    groups, tokens, experts = scores.shape
    choices = check_choices(choices, experts)
    capacity = check_capacity(capacity)
    tries = check_tries(tries, choices, experts)
    check_slot_order(slot_order, tries, choices)
    slots = experts * capacity

    # Selection.
    best = xp.top_indices(xp.promote(scores), tries)
    if keep is not None:
        check_mask("keep", keep, (groups, tokens, tries), "choice")
    if order is not None:
        best = xp.take_rows(best, order[:, :served])
        keep = None if keep is None else xp.take_rows(keep, order[:, :served])

    # Slots.
    slot = _slots_in_stages(xp, best, keep, hold, choices, experts, capacity, by_token=slot_order == "token")
    if order is not None:
        if served < tokens:
            of_others = xp.full((groups, tokens - served, choices), slots, slot)
            slot = xp.concatenate([slot, of_others], 1)
        slot = xp.take_rows(slot, xp.argsort(order))
    # Request k * T + t is choice k of token t. Request K * T marks an empty slot.
    request = xp.invert_index(xp.swapaxes(slot, 1, 2).reshape(groups, -1), slots).reshape(groups, experts, capacity)
    token = request if choices == 1 else xp.where(request < choices * tokens, request % tokens, tokens)

    # Weights. A choice without a slot has the expert index E.
    if normalize is not None:
        check_option("normalize", normalize, NORMS)
        combine_scores = _divided(xp, combine_scores, slot // capacity, normalize, after=True)
    return xp.SlotRouting(token, xp.slot_weights(combine_scores, token, slot), slot, tokens)


def _slots_in_stages(
    xp: Namespace[Array],
    best: Array,
    keep: Array | None,
    hold: bool,
    choices: int,
    experts: int,
    capacity: int,
    *,
    by_token: bool,
) -> Array:
    """Returns the slot `e * C + c` of each choice, or E * C for a choice without a slot, (G, N, K) int32.

    `best` (G, N, tries) int32 lists the experts that each token tries, best first. `keep` contains booleans of the same shape.

    If `by_token` is true, there is a single stage: each token requests all its experts before the next token requests an expert.

    The first K stages are merged, because no token can have K experts before the end of stage K.
    """
    groups, tokens, tries = best.shape
    slots = experts * capacity
    earlier: Any = 0  # requests of earlier stages per expert, (groups, experts + 1); the index E means no expert
    stages_of_slots: list[Array] = []
    for first, last in [(0, choices), *((stage, stage + 1) for stage in range(choices, tries))]:
        asked = best[:, :, first:last]
        mask = None if keep is None else keep[:, :, first:last]
        if mask is not None and not hold:
            asked = xp.where(mask, asked, experts)
        if stages_of_slots:
            has = xp.sum(xp.cast(xp.concatenate(stages_of_slots, 2) < slots, "int32"), 2, keepdims=True)
            asked = xp.where(has < choices, asked, experts)
        requests = (asked if by_token else xp.swapaxes(asked, 1, 2)).reshape(groups, -1)
        place = xp.positions(requests, experts)
        if stages_of_slots:
            place = place + xp.take(earlier, requests)
        slot = _slots_of_places(xp, requests, place, experts, capacity)
        slot = slot.reshape(groups, tokens, -1) if by_token else xp.swapaxes(slot.reshape(groups, -1, tokens), 1, 2)
        stages_of_slots.append(slot if mask is None or not hold else xp.where(mask, slot, slots))
        if last < tries:
            own = xp.indices(groups, requests)[:, None] * (experts + 1) + requests
            earlier = earlier + xp.count(own, groups * (experts + 1), requests).reshape(groups, -1)
    if tries == choices:
        return stages_of_slots[0]
    return -xp.top_values(-xp.concatenate(stages_of_slots, 2), choices)


def expert_choice(
    xp: RoutingNamespace[Array, BySlot, Dense],
    scores: Array,
    *,
    capacity: int,
    combine_scores: Array | None = None,
    drop_zero: bool = False,
) -> BySlot:
    """scores and combine_scores (G, T, E) -> SlotRouting with `slot` None."""
    combine_scores = _checked(xp, scores, combine_scores)
    tokens = scores.shape[1]
    columns = xp.swapaxes(xp.stop_gradient(xp.promote(scores)), 1, 2)
    token = xp.top_indices(columns, check_capacity(capacity, tokens))
    if drop_zero:
        token = xp.where(xp.take(columns, token) > 0, token, tokens)
    return xp.SlotRouting(token, xp.slot_weights(combine_scores, token, None), None, tokens)


def slots_of_requests(xp: Namespace[Array], requests: Array, experts: int, capacity: int) -> Array:
    """The slot `e * C + c` of each request, or E * C if the expert is full or the request is E, which means no expert.

    `requests` and the result are (G, N) int32.
    """
    return _slots_of_places(xp, requests, xp.positions(requests, experts), experts, capacity)


def _slots_of_places(xp: Namespace[Array], requests: Array, place: Array, experts: int, capacity: int) -> Array:
    """The slot `e * C + c` of each request for expert e, where c is the number of earlier requests for e, or E * C if c >= C."""
    slots = experts * capacity
    return xp.clip(xp.where(place < capacity, requests * capacity + place, slots), 0, slots)


def _checked(xp: Namespace[Array], scores: Array, combine_scores: Array | None) -> Array:
    """Checks `scores` and `combine_scores`, and returns the combine scores (by default, `scores`) in float32 or better."""
    check_scores("scores", scores, AXES)
    if combine_scores is None:
        return xp.promote(scores)
    check_scores("combine_scores", combine_scores, AXES)
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    return xp.promote(combine_scores)


def mostly_empty(routing: BySlot) -> bool:
    """True if a layer should compute only the filled slots of this routing."""
    if routing.slot is None:
        return False
    _, experts, capacity = routing.token.shape
    return filled_alone(routing.tokens, routing.slot.shape[2], experts, capacity)
