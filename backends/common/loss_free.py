"""Loss-free balancing: biased scores (without gradient), the resulting load, and the bias update."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import (
    check_choices,
    check_mask,
    check_non_negative,
    check_option,
    check_same_shape,
    check_scores,
    check_size,
)

__all__ = ["balance_bias", "biased_scores", "expert_load"]

AXES = "groups tokens experts"


def biased_scores(xp: Namespace[Array], scores: Array, bias: Array) -> Array:
    """scores (G, T, E), bias (E,) -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    check_scores("bias", bias, "experts")
    check_size("bias", bias, 0, scores.shape[2], "the experts of scores")
    scores, bias = xp.promote_all(scores, bias)
    return xp.stop_gradient(scores + bias)


def expert_load(
    xp: Namespace[Array], scores: Array, keep: Array | None = None, *, choices: int, scope: str = "batch"
) -> Array:
    """Returns the number of choices of each expert, summed over the groups: scores (G, T, E), keep (G, T, K) -> (E,)."""
    check_scores("scores", scores, AXES)
    check_option("scope", scope, ("batch", "global"))
    scores = xp.promote(xp.stop_gradient(scores))
    best = xp.top_indices(scores, check_choices(choices, scores.shape[2]))
    if keep is not None:
        check_mask("keep", keep, tuple(best.shape), "choice")
        best = xp.where(keep, best, scores.shape[2])
    chosen = xp.is_chosen(best, scores)
    return xp.sum(xp.cast(chosen, scores.dtype), (0, 1))


def balance_bias(xp: Namespace[Array], bias: Array, load: Array, *, rate: float, recentre: bool = False) -> Array:
    """bias (E,), load (E,) -> (E,)."""
    check_scores("bias", bias, "experts")
    check_scores("load", load, "experts")
    check_same_shape("load", load, "bias", bias)
    bias, load = xp.promote_all(bias, load)
    change = -check_non_negative("rate", rate) * _excess_sign(xp, load)
    return bias + (change - xp.mean(change) if recentre else change)


def _excess_sign(xp: Namespace[Array], load: Array) -> Array:
    """Returns the sign of `load` minus its mean. Comparing high and low digits separately keeps the sign exact up to 2^36 choices."""
    upper = _whole(xp, load / 4096)
    high, low = (load.shape[0] * part - xp.sum(part) for part in (upper, load - 4096 * upper))
    carry = _whole(xp, low / 4096)
    return xp.sign(2 * xp.sign(high + carry) + xp.sign(low - 4096 * carry))


def _whole(xp: Namespace[Array], x: Array) -> Array:
    """The integer part of `x`."""
    return xp.where(xp.abs(x) < 2**24, xp.cast(xp.cast(x, "int32"), x.dtype), x)
