"""Allocations: from scores to slots, by Token Choice (in any order, or among the most important) and Expert Choice.

Selections are integers and carry no gradient; combine weights do. Ties go to the lower index, in every sort.
"""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.rows import invert_index, take_scores
from moespec.backends.torch.selection import top_indices
from moespec.backends.torch.slots import SlotRouting
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

AXES = "groups tokens experts"

ONE_HOT_EXPERTS = 32
"""Up to this many experts a cumulative sum of one-hot rows counts requests; beyond, a sort of integers is faster."""


def batch_priority(scores: Tensor, *, by: str = "max", choices: int = 1) -> Tensor:
    """scores (G, T, E) -> (G, T) int32."""
    check_scores("scores", scores, AXES)
    check_option("by", by, ("max", "sum"))
    choices = check_choices(choices, scores.shape[2])
    scores = widen(scores.detach())
    best = top_indices(scores, choices if by == "sum" else 1)
    priority = scores.gather(2, best.long()).sum(dim=2)
    return torch.sort(priority, dim=1, descending=True, stable=True).indices.int()


def is_chosen(scores: Tensor, choices: int) -> Tensor:
    """Whether an expert is among the `choices` best of the token: (groups, tokens, experts) booleans."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(2, top_indices(scores, choices).long(), True)


def normalize_selected(
    scores: Tensor, combine_scores: Tensor | None = None, *, choices: int, norm: str = "sum", epsilon: float = 0.0
) -> Tensor:
    """scores and combine_scores (G, T, E) -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    weights = _combine_scores(scores, combine_scores)
    check_option("norm", norm, NORMS)
    epsilon = check_non_negative("epsilon", epsilon)
    return _divided(weights, is_chosen(scores, check_choices(choices, scores.shape[2])), norm, epsilon)


def _divided(weights: Tensor, chosen: Tensor, norm: str, epsilon: float = 0.0) -> Tensor:
    """Weights by the sum or norm, and epsilon, of those that are chosen, where a token has any: all (groups, tokens, experts)."""
    of_them = torch.where(chosen, weights, 0.0)
    total = (of_them if norm == "sum" else of_them.square()).sum(dim=2, keepdim=True)
    total = torch.where(chosen.any(dim=2, keepdim=True), total, 1.0)
    return weights / ((total if norm == "sum" else total.sqrt()) + epsilon)


def gshard_keep(gates: Tensor, noise: Tensor) -> Tensor:
    """gates (G, T, E), noise (G, T) -> (G, T, 2) booleans."""
    check_scores("gates", gates, AXES)
    check_scores("noise", noise, "groups tokens")
    check_choices(2, gates.shape[2])
    check_size("noise", noise, 0, gates.shape[0], "the groups of gates")
    check_size("noise", noise, 1, gates.shape[1], "the tokens of gates")
    second = torch.topk(widen(gates.detach()), 2, dim=2).values[:, :, 1]
    second_kept = 2 * second > widen(noise)
    return torch.stack([torch.ones_like(second_kept), second_kept], dim=2)


def token_choice(
    scores: Tensor,
    *,
    choices: int,
    capacity: int,
    combine_scores: Tensor | None = None,
    order: Tensor | None = None,
    keep: Tensor | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> SlotRouting:
    """scores and combine_scores (G, T, E), order (G, T) integers, keep (G, T, tries) booleans -> SlotRouting.

    That `order` is a permutation is not checked.
    """
    check_scores("scores", scores, AXES)
    combine_scores = _combine_scores(scores, combine_scores)
    if order is not None:
        check_one_per_token("order", order, tuple(scores.shape[:2]))
    return _serve(
        scores, combine_scores, choices, capacity, order, scores.shape[1], keep, hold, tries, slot_order, normalize
    )


def importance_score_order(scores: Tensor, *, drop: float = 0.1) -> Tensor:
    """scores (G, T, E) -> (G, survivors) int32."""
    order = batch_priority(scores)
    return order[:, : surviving_tokens(order.shape[1], drop)]


def importance_score_choice(
    scores: Tensor,
    *,
    choices: int,
    capacity: int,
    drop: float = 0.1,
    combine_scores: Tensor | None = None,
) -> SlotRouting:
    """scores and combine_scores (G, T, E) -> SlotRouting."""
    check_scores("scores", scores, AXES)
    combine_scores = _combine_scores(scores, combine_scores)
    left = surviving_tokens(scores.shape[1], drop)
    return _serve(scores, combine_scores, choices, capacity, batch_priority(scores), left)


def _serve(
    scores: Tensor,
    combine_scores: Tensor,
    choices: int,
    capacity: int,
    order: Tensor | None,
    served: int,
    keep: Tensor | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> SlotRouting:
    """Token Choice of the first `served` tokens in `order` (groups, tokens), which all the others come after."""
    groups, tokens, experts = scores.shape
    choices = check_choices(choices, experts)
    capacity = check_capacity(capacity)
    tries = check_tries(tries, choices, experts)
    check_slot_order(slot_order, tries, choices)

    # Selection.
    best = top_indices(scores, tries)
    if keep is not None:
        check_mask("keep", keep, (groups, tokens, tries), "choice")
    if order is not None:
        line = order[:, :served].long()[:, :, None].expand(-1, -1, tries)
        best = best.gather(1, line)
        keep = None if keep is None else keep.gather(1, line)

    # Slots.
    slot = _slots_in_stages(best, keep, hold, choices, experts, capacity, by_token=slot_order == "token")
    if order is not None:
        if served < tokens:
            of_others = slot.new_full((groups, tokens - served, choices), experts * capacity)
            slot = torch.cat([slot, of_others], dim=1)
        slot = slot.gather(1, invert_index(order, tokens).long()[:, :, None].expand(-1, -1, choices))

    # Weights. The slot of a choice that got none is that of an expert E.
    if normalize is not None:
        check_option("normalize", normalize, NORMS)
        kept = torch.zeros(groups, tokens, experts + 1, dtype=torch.bool, device=slot.device)
        kept = kept.scatter(2, (slot // capacity).long(), True)[:, :, :experts]
        combine_scores = _divided(combine_scores, kept, normalize)

    # Dispatch and combine. A request is numbered t * K + k, and T * K marks an empty slot: // K gives the token.
    request = invert_index(slot.reshape(groups, -1), experts * capacity)
    token = (request // choices).reshape(groups, experts, capacity)
    return SlotRouting(token, take_scores(combine_scores, token), slot, tokens)


def _slots_in_stages(
    best: Tensor, keep: Tensor | None, hold: bool, choices: int, experts: int, capacity: int, *, by_token: bool
) -> Tensor:
    """The slots `e * C + c` of each token: (groups, tokens, choices) int32, E * C for a choice without one.

    best: (groups, tokens, tries) int32, the experts that a token tries, best first. keep: booleans of that shape.

    by_token: whether a token makes its requests before the next one, in the one stage that there is then.

    The first K stages are one, since no token has K experts before they end.
    """
    groups, tokens, tries = best.shape
    slots = experts * capacity
    filled = best.new_zeros((groups, experts + 1))  # the last is not an expert
    stages_of_slots: list[Tensor] = []
    for first, last in [(0, choices), *((stage, stage + 1) for stage in range(choices, tries))]:
        asked = best[:, :, first:last]
        mask = None if keep is None else keep[:, :, first:last]
        if mask is not None and not hold:
            asked = torch.where(mask, asked, experts)
        if stages_of_slots:
            has = (torch.cat(stages_of_slots, dim=2) < slots).sum(dim=2, keepdim=True)
            asked = torch.where(has < choices, asked, experts)
        requests = (asked if by_token else asked.mT).reshape(groups, -1)
        place = request_positions(requests, experts)
        if stages_of_slots:
            place = place + filled.gather(1, requests.long())
        slot = slots_of_places(requests, place, experts, capacity)
        slot = slot.reshape(groups, tokens, -1) if by_token else slot.reshape(groups, -1, tokens).mT
        stages_of_slots.append(slot if mask is None or not hold else torch.where(mask, slot, slots))
        if last < tries:
            filled = filled.scatter_add(1, requests.long(), torch.ones_like(requests)).clamp_max(capacity)
    if tries == choices:
        return stages_of_slots[0]
    return torch.sort(torch.cat(stages_of_slots, dim=2), dim=2).values[:, :, :choices]


def expert_choice(
    scores: Tensor, *, capacity: int, combine_scores: Tensor | None = None, drop_zero: bool = False
) -> SlotRouting:
    """scores and combine_scores (G, T, E) -> SlotRouting with `slot` None."""
    # Scores.
    check_scores("scores", scores, AXES)
    combine_scores = _combine_scores(scores, combine_scores)
    tokens = scores.shape[1]
    capacity = check_capacity(capacity, tokens)

    # Selection, slots.
    columns = scores.detach().mT
    token = top_indices(columns, capacity)
    if drop_zero:
        token = torch.where(columns.gather(2, token.long()) > 0, token, tokens)

    # Dispatch and combine.
    return SlotRouting(token, take_scores(combine_scores, token), None, tokens)


def _combine_scores(scores: Tensor, combine_scores: Tensor | None) -> Tensor:
    if combine_scores is None:
        return widen(scores)
    check_scores("combine_scores", combine_scores, AXES)
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    return widen(combine_scores)


def request_slots(requests: Tensor, experts: int, capacity: int) -> Tensor:
    """The slot `e * C + c` of each request for an expert, assigned in order; E * C where the expert is full.

    requests: (groups, requests) int32, where E stands for no expert and gets E * C, too; returns the same.
    """
    return slots_of_places(requests, request_positions(requests, experts), experts, capacity)


def slots_of_places(requests: Tensor, place: Tensor, experts: int, capacity: int) -> Tensor:
    """The slot `e * C + c` of each request for an expert that has place `c` in line; E * C where there is none."""
    slots = experts * capacity
    return torch.where(place < capacity, requests * capacity + place, slots).clamp_max(slots)


def request_positions(requests: Tensor, experts: int) -> Tensor:
    """How many earlier requests of the same group are for the same expert.

    Args:
        requests: (groups, requests) int32, their experts, in the order of priority.
        experts: their number.

    Returns:
        (groups, requests) int32.
    """
    return count_positions(requests, experts) if experts <= ONE_HOT_EXPERTS else sort_positions(requests, experts)


def count_positions(requests: Tensor, experts: int) -> Tensor:
    """`request_positions` by a cumulative sum of one-hot rows."""
    asked = requests[:, :, None] == torch.arange(experts, device=requests.device, dtype=requests.dtype)
    counts = asked.cumsum(dim=1, dtype=torch.int32)
    return torch.where(asked, counts - 1, 0).sum(dim=2, dtype=torch.int32)


def sort_positions(requests: Tensor, experts: int) -> Tensor:
    """`request_positions` by a stable sort of the integers."""
    ordered, order = torch.sort(requests, dim=1, stable=True)
    requested = torch.arange(experts + 1, device=requests.device, dtype=requests.dtype)  # E is not an expert
    first = torch.searchsorted(ordered, requested.expand(requests.shape[0], -1).contiguous())
    rank = torch.arange(requests.shape[1], device=requests.device) - first.gather(1, ordered.long())
    return rank.gather(1, invert_index(order, requests.shape[1]).long()).int()
