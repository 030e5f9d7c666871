"""A variable number of experts per token: the masks, which carry no gradient, and the controllers."""

import math

from moespec.backends.common.namespace import Array, Namespace
from moespec.backends.common.strictly_balanced import batchwise_mask
from moespec.spec.algorithms.budget_masks import LEAST
from moespec.spec.checks import (
    check_at_least,
    check_choices,
    check_mask,
    check_non_negative,
    check_positive,
    check_rank,
    check_scores,
    check_size,
)

__all__ = [
    *("budget_excess", "cutoff_mask", "kept_scores", "pooled_cutoff", "pooled_mask", "renewed_controller"),
    *("renewed_cutoffs", "top_p_mask"),
]

AXES = "groups tokens experts"


def top_p_mask(xp: Namespace[Array], scores: Array, controller: Array, *, p: float) -> Array:
    """scores (G, T, E), controller (2,) -> (G, T, E) booleans."""
    check_scores("scores", scores, AXES)
    _check_pair("controller", controller, "pair", "a change of p and an integral")
    scores, controller = xp.promote_all(xp.stop_gradient(scores), controller)
    order = xp.top_indices(scores, scores.shape[2])
    ranked = xp.take(scores, order)
    better = xp.concatenate([xp.zeros_like(ranked[..., :1]) - math.inf, xp.cumsum(ranked, 2)[..., :-1]], 2)
    chosen = better <= check_positive("p", p) + controller[0]
    return xp.is_chosen(xp.where(chosen, order, scores.shape[2]), scores)


def pooled_mask(xp: Namespace[Array], scores: Array, *, choices: int) -> Array:
    """scores (G, T, E) -> (G, T, E) booleans."""
    check_scores("scores", scores, AXES)
    groups, tokens, experts = scores.shape
    flat = xp.promote(scores).reshape(groups, tokens * experts)
    best = xp.top_indices(flat, check_choices(choices, experts) * tokens)
    return xp.put_true(best, flat, 1).reshape(groups, tokens, experts)


def cutoff_mask(
    xp: Namespace[Array], scores: Array, cutoffs: Array, *, capacity: int = 1, warmup_steps: int = 0
) -> Array:
    """scores (G, T, E), cutoffs (2, E) -> (G, T, E) booleans."""
    check_scores("scores", scores, AXES)
    _check_pair("cutoffs", cutoffs, "pair experts", "cutoffs and steps")
    check_size("cutoffs", cutoffs, 1, scores.shape[2], "the experts of scores")
    best, steps = batchwise_mask(xp, scores, capacity=capacity), check_at_least("warmup_steps", warmup_steps, 0)
    scores, cutoffs = xp.promote_all(scores, cutoffs)
    warm, above = cutoffs[1] < steps, scores > cutoffs[0]
    return (warm & best) | (~warm & above)


def kept_scores(xp: Namespace[Array], scores: Array, mask: Array) -> Array:
    """scores (G, T, E), mask (G, T, E) booleans -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    check_mask("mask", mask, tuple(scores.shape), "score")
    return xp.where(mask, xp.maximum(xp.promote(scores), LEAST), 0.0)


def budget_excess(xp: Namespace[Array], mask: Array, *, choices: int) -> Array:
    """Returns the sum over the groups: mask (G, T, E) booleans -> (2,)."""
    check_rank("mask", mask, AXES)
    check_mask("mask", mask, tuple(mask.shape), "token and expert")
    groups, tokens, experts = mask.shape
    # Subtracts `choices` for each token before the sum over tokens, because float32 integers are inexact above 2^24.
    excess = xp.sum(xp.sum(xp.where(mask, 1.0, 0.0), 2) - check_choices(choices, experts))
    return xp.stack([excess, xp.zeros_like(excess) + groups * tokens], 0)


def pooled_cutoff(xp: Namespace[Array], scores: Array, *, choices: int) -> Array:
    """Returns the sum of the groups' cutoffs, once per expert, and the number of groups: scores (G, T, E) -> (2, E)."""
    check_scores("scores", scores, AXES)
    groups, tokens, experts = scores.shape
    flat = xp.promote(xp.stop_gradient(scores)).reshape(groups, tokens * experts)
    total = xp.sum(xp.largest(flat, check_choices(choices, experts) * tokens)[0][:, -1])
    return xp.broadcast_to(xp.stack([total, xp.zeros_like(total) + groups], 0).reshape(2, 1), (2, experts))


def renewed_cutoffs(xp: Namespace[Array], cutoffs: Array, reached: Array, *, decay: float) -> Array:
    """cutoffs (2, E), reached (2, E) -> (2, E)."""
    _check_pair("cutoffs", cutoffs, "pair experts", "cutoffs and steps")
    _check_pair("reached", reached, "pair experts", "sums and their number")
    check_size("reached", reached, 1, cutoffs.shape[1], "the experts of cutoffs")
    decay = check_non_negative("decay", decay)
    cutoffs, reached = xp.promote_all(cutoffs, reached)
    steps = cutoffs[1] + 1
    power = steps * (math.log(decay) if decay else -math.inf)
    # 1 - e^x = -tanh(x / 2) (1 + e^x) is accurate for small x.
    rate = 1 / steps if decay == 1 else (decay - 1) / (xp.tanh(power / 2) * (1 + xp.exp(power)))
    return xp.stack([cutoffs[0] + rate * (reached[0] / reached[1] - cutoffs[0]), steps], 0)


def renewed_controller(
    xp: Namespace[Array], controller: Array, budget: Array, *, experts: int, gain: float, integral_gain: float
) -> Array:
    """controller (2,), budget (2,) -> (2,)."""
    _check_pair("controller", controller, "pair", "a change of p and an integral")
    _check_pair("budget", budget, "pair", "an excess and a number of tokens")
    controller, budget = xp.promote_all(controller, budget)
    error = -budget[0] / (check_at_least("experts", experts, 1) * budget[1])
    integral = controller[1] + error
    gain, integral_gain = check_non_negative("gain", gain), check_non_negative("integral_gain", integral_gain)
    return xp.stack([gain * error + integral_gain * integral, integral], 0)


def _check_pair(name: str, array: Array, axes: str, entries: str) -> None:
    check_scores(name, array, axes)
    check_size(name, array, 0, 2, entries)
