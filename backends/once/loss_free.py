"""Balance without a loss: biased scores, which carry no gradient, the load that they lead to, and the update of the bias."""

from moespec.backends.once.namespace import Array, Namespace
from moespec.spec.checks import (
    check_choices,
    check_non_negative,
    check_option,
    check_same_shape,
    check_scores,
    check_size,
)

__all__ = ["balance_bias", "biased_scores", "expert_load"]

AXES = "groups tokens experts"


def biased_scores(xp: Namespace, scores: Array, bias: Array) -> Array:
    """scores (G, T, E), bias (E,) -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    check_scores("bias", bias, "experts")
    check_size("bias", bias, 0, scores.shape[2], "the experts of scores")
    scores, bias = xp.widest(scores, bias)
    return xp.stop_gradient(scores + bias)


def expert_load(xp: Namespace, scores: Array, *, choices: int, scope: str = "batch") -> Array:
    """The sum over the groups: scores (G, T, E) -> (E,)."""
    check_scores("scores", scores, AXES)
    check_option("scope", scope, ("batch", "global"))
    scores = xp.wide(xp.stop_gradient(scores))
    chosen = xp.is_chosen(xp.top_indices(scores, check_choices(choices, scores.shape[2])), scores)
    return xp.sum(xp.cast(chosen, scores.dtype), (0, 1))


def balance_bias(xp: Namespace, bias: Array, load: Array, *, rate: float, recentre: bool = False) -> Array:
    """bias (E,), load (E,) -> (E,)."""
    check_scores("bias", bias, "experts")
    check_scores("load", load, "experts")
    check_same_shape("load", load, "bias", bias)
    bias, load = xp.widest(bias, load)
    change = -check_non_negative("rate", rate) * _excess_sign(xp, load)
    return bias + (change - xp.mean(change) if recentre else change)


PART = 4096
"""A part of a load is smaller: its product with as many experts, and their sum, are exact in float32."""


def _excess_sign(xp: Namespace, load: Array) -> Array:
    """The sign of `load` less its mean, exact for whole numbers: float32 has no sum of 2^24 choices, so that three parts are summed."""
    upper = _whole(xp, load / PART)
    highest = _whole(xp, upper / PART)
    low, middle, high = (
        load.shape[0] * part - xp.sum(part) for part in (load - PART * upper, upper - PART * highest, highest)
    )
    carry = _whole(xp, low / PART)
    low, middle = low - PART * carry, middle + carry
    carry = _whole(xp, middle / PART)
    middle, high = middle - PART * carry, high + carry
    return xp.sign(4 * xp.sign(high) + 2 * xp.sign(middle) + xp.sign(low))


def _whole(xp: Namespace, x: Array) -> Array:
    """`x` without its fraction, which numbers from 2^24 on are taken to have none of."""
    return xp.where(xp.abs(x) < 2**24, xp.cast(xp.cast(x, "int32"), x.dtype), x)
