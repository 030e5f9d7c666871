"""Allocations: from scores to slots, by Token Choice (in any order, or among the most important) and Expert Choice.

Selections are integers and carry no gradient; combine weights do. Ties go to the lower index, in every sort.
"""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.rows import invert_index, take_scores
from moespec.backends.torch.slots import SlotRouting
from moespec.spec.checks import (
    check_capacity,
    check_choices,
    check_mask,
    check_one_per_token,
    check_option,
    check_same_shape,
    check_scores,
    check_size,
)
from moespec.spec.importance_score import surviving_tokens

__all__ = [
    "batch_priority",
    "expert_choice",
    "gshard_keep",
    "importance_score_choice",
    "importance_score_order",
    "is_chosen",
    "normalize_selected",
    "token_choice",
    "top_experts",
]

AXES = "groups tokens experts"

ONE_HOT_EXPERTS = 32
"""Up to this many experts a cumulative sum of one-hot rows counts requests; beyond, a sort of integers is faster."""


def batch_priority(scores: Tensor, *, by: str = "max", choices: int = 1) -> Tensor:
    """The order in which `token_choice` serves the tokens: descending priority, ties by index.

    Args:
        scores: (groups, tokens, experts), the scores of the selection.
        by: "max", `s[t] = max_e scores[t, e]`; or "sum", over the `choices` largest scores of the token.
        choices: experts K that a token chooses.

    Returns:
        (groups, tokens) int32, a permutation in each group.

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: V-MoE, section 4. Section 4.
    """
    check_scores("scores", scores, AXES)
    check_option("by", by, ("max", "sum"))
    choices = check_choices(choices, scores.shape[2])
    scores = widen(scores.detach())
    if by == "max":
        priority = scores.amax(dim=2)
    else:
        priority = torch.sort(scores, dim=2, descending=True, stable=True).values[:, :, :choices].sum(dim=2)
    return torch.sort(priority, dim=1, descending=True, stable=True).indices.int()


def top_experts(scores: Tensor, choices: int) -> Tensor:
    """The `choices` best experts of each token, best first: (groups, tokens, choices) int32."""
    return torch.sort(scores.detach(), dim=2, descending=True, stable=True).indices[:, :, :choices].int()


def is_chosen(scores: Tensor, choices: int) -> Tensor:
    """Whether an expert is among the `choices` best of the token: (groups, tokens, experts) booleans."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(2, top_experts(scores, choices).long(), True)


def normalize_selected(scores: Tensor, combine_scores: Tensor | None = None, *, choices: int) -> Tensor:
    """Combine scores divided by their sum over the K experts that a token chooses by `scores`, before capacity drops.

    Args:
        scores: (groups, tokens, experts), by which tokens choose.
        combine_scores: (groups, tokens, experts); `scores` if None.
        choices: experts K that a token chooses.

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: GShard (arXiv 2006.16668), Algorithm 1. Section 2.6.
    """
    check_scores("scores", scores, AXES)
    weights = _combine_scores(scores, combine_scores)
    chosen = is_chosen(scores, check_choices(choices, scores.shape[2]))
    return weights / torch.where(chosen, weights, 0.0).sum(dim=2, keepdim=True)


def gshard_keep(gates: Tensor, noise: Tensor) -> Tensor:
    """Which of its two choices a token asks for: the first always, the second if `2 g2 > noise`.

    Args:
        gates: (groups, tokens, experts), of which `g2` is the second largest.
        noise: (groups, tokens), uniform draws from [0, 1).

    Returns:
        (groups, tokens, 2) booleans.

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: GShard, Algorithm 1. Section 20.
    """
    check_scores("gates", gates, AXES)
    check_scores("noise", noise, "groups tokens")
    check_choices(2, gates.shape[2])
    check_size("noise", noise, 0, gates.shape[0], "the groups of gates")
    check_size("noise", noise, 1, gates.shape[1], "the tokens of gates")
    second = torch.topk(widen(gates.detach()), 2, dim=2).values[:, :, 1]
    kept = 2 * second > widen(noise)
    return torch.stack([torch.ones_like(kept), kept], dim=2)


def token_choice(
    scores: Tensor,
    *,
    choices: int,
    capacity: int,
    combine_scores: Tensor | None = None,
    order: Tensor | None = None,
    keep: Tensor | None = None,
) -> SlotRouting:
    """Token Choice: each token chooses its K best experts, which serve first choices first, tokens in order.

    A choice that finds its expert full is dropped.

    Args:
        scores: (groups, tokens, experts), by which tokens choose.
        choices: experts K that a token chooses, `1 <= K <= experts`.
        capacity: slots C per expert, at least 1.
        combine_scores: (groups, tokens, experts), the weights of the chosen; `scores` if None.
        order: (groups, tokens) integers, a permutation in each group (not verified); by index if None.
        keep: (groups, tokens, choices) booleans, whether a choice asks for a slot; all if None.

    Returns:
        SlotRouting whose `slot` is (groups, tokens, choices).

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: Routers, Algorithm 1. Section 3.
    """
    check_scores("scores", scores, AXES)
    combine_scores = _combine_scores(scores, combine_scores)
    if order is not None:
        check_one_per_token("order", order, tuple(scores.shape[:2]))
    return _serve(scores, combine_scores, choices, capacity, order, scores.shape[1], keep)


def importance_score_order(scores: Tensor, *, drop: float = 0.1) -> Tensor:
    """The tokens that are left when the share `drop` is removed, by descending importance, ties by index.

    Args:
        scores: (groups, tokens, experts); the importance of a token is `max_e scores[t, e]`.
        drop: share of the tokens to remove, `0 <= drop < 1`.

    Returns:
        (groups, survivors) int32.

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: Sparse-MLP (arXiv 2109.02008), section 2.2, eq. (3). Section 15.5.
    """
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
    """Token Choice among the tokens that `importance_score_order` leaves, in that order.

    Args:
        scores: (groups, tokens, experts), by which tokens are sorted and choose.
        choices: experts K that a token chooses, `1 <= K <= experts`.
        capacity: slots C per expert, at least 1.
        drop: share of the tokens to remove, `0 <= drop < 1`.
        combine_scores: (groups, tokens, experts), the weights of the chosen; `scores` if None.

    Returns:
        SlotRouting whose `slot` is (groups, tokens, choices).

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: Sparse-MLP (arXiv 2109.02008), section 2.2. Section 15.5.
    """
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
) -> SlotRouting:
    """Token Choice of the first `served` tokens in `order` (groups, tokens), which all the others come after."""
    groups, tokens, experts = scores.shape
    choices = check_choices(choices, experts)
    capacity = check_capacity(capacity)

    # Selection.
    chosen = top_experts(scores, choices)
    if keep is not None:
        check_mask("keep", keep, (groups, tokens, choices), "choice")
        chosen = torch.where(keep, chosen, experts)  # no expert

    # Slots.
    if order is not None:
        chosen = chosen.gather(1, order[:, :served].long()[:, :, None].expand(-1, -1, choices))
    slot = request_slots(chosen.mT.reshape(groups, -1), experts, capacity).reshape(groups, choices, served).mT
    if order is not None:
        if served < tokens:
            of_others = slot.new_full((groups, tokens - served, choices), experts * capacity)
            slot = torch.cat([slot, of_others], dim=1)
        slot = slot.gather(1, invert_index(order, tokens).long()[:, :, None].expand(-1, -1, choices))

    # Dispatch and combine. A request is numbered t * K + k, and T * K marks an empty slot: // K gives the token.
    request = invert_index(slot.reshape(groups, -1), experts * capacity)
    token = (request // choices).reshape(groups, experts, capacity)
    return SlotRouting(token, take_scores(combine_scores, token), slot, tokens)


def expert_choice(
    scores: Tensor, *, capacity: int, combine_scores: Tensor | None = None, drop_zero: bool = False
) -> SlotRouting:
    """Expert Choice: each expert chooses its C best tokens; slot 0 holds the best.

    Args:
        scores: (groups, tokens, experts), by which experts choose.
        capacity: slots C per expert, `1 <= C <= tokens`.
        combine_scores: (groups, tokens, experts), the weights of the chosen; `scores` if None.
        drop_zero: leave a slot empty whose token has a score of at most 0.

    Returns:
        SlotRouting with `slot` None.

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: Routers, Algorithm 2; Zhou et al. 2022 (arXiv 2202.09368). Section 5.
    """
    # Scores.
    check_scores("scores", scores, AXES)
    combine_scores = _combine_scores(scores, combine_scores)
    tokens = scores.shape[1]
    capacity = check_capacity(capacity, tokens)

    # Selection, slots.
    best, chosen = torch.sort(scores.detach(), dim=1, descending=True, stable=True)
    token = chosen[:, :capacity].int()
    if drop_zero:
        token = torch.where(best[:, :capacity] > 0, token, tokens)
    token = token.mT.contiguous()

    # Dispatch and combine.
    return SlotRouting(token, take_scores(combine_scores, token), None, tokens)


def _combine_scores(scores: Tensor, combine_scores: Tensor | None) -> Tensor:
    if combine_scores is None:
        return widen(scores)
    check_scores("combine_scores", combine_scores, AXES)
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    return widen(combine_scores)


def request_slots(requests: Tensor, experts: int, capacity: int) -> Tensor:
    """The slot `e * C + c` of each request for an expert, in the order of service; E * C where it is full.

    requests: (groups, requests) int32, where E asks for no expert and gets E * C, too; returns the same.
    """
    place, slots = request_positions(requests, experts), experts * capacity
    return torch.where(place < capacity, requests * capacity + place, slots).clamp_max(slots)


def request_positions(requests: Tensor, experts: int) -> Tensor:
    """How many earlier requests of the same group ask for the same expert.

    Args:
        requests: (groups, requests) int32, the experts asked for, in the order of service.
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
    experts_present = torch.arange(experts, device=requests.device, dtype=requests.dtype)
    first = torch.searchsorted(ordered, experts_present.expand(requests.shape[0], -1).contiguous())
    rank = torch.arange(requests.shape[1], device=requests.device) - first.gather(1, ordered.long())
    return rank.gather(1, invert_index(order, requests.shape[1]).long()).int()
