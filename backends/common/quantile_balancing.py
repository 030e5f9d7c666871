"""Quantile balancing: counts the biases at which tokens would choose an expert, and takes a quantile. Results carry no gradient."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import check_at_least, check_rivals, check_scores, check_size

__all__ = ["quantile_bias", "required_biases"]


def required_biases(xp: Namespace[Array], scores: Array, bias: Array, *, choices: int, bins: int) -> Array:
    """Returns one histogram per expert, summed over the groups: scores (G, T, E), bias (E,) -> (E, bins)."""
    check_scores("scores", scores, "groups tokens experts")
    check_scores("bias", bias, "experts")
    check_size("bias", bias, 0, scores.shape[2], "the experts of scores")
    choices, experts = check_rivals(choices, scores.shape[2]), scores.shape[2]
    bins = check_at_least("bins", bins, 1)
    scores, bias = xp.promote_all(xp.stop_gradient(scores), xp.stop_gradient(bias))
    cutoff = xp.largest(scores + bias, choices + 1)[0][..., choices:]
    low, width = _bounds(xp, bias)
    position = xp.cast(xp.clip((cutoff - scores - low) * (bins / width), 0, bins - 1), "int32")
    return xp.count(position + bins * xp.indices(experts, scores), experts * bins, scores).reshape(experts, bins)


def quantile_bias(xp: Namespace[Array], bias: Array, counts: Array, *, choices: int) -> Array:
    """bias (E,), counts (E, bins) -> (E,)."""
    check_scores("bias", bias, "experts")
    check_scores("counts", counts, "experts bins")
    check_size("counts", counts, 0, bias.shape[0], "the experts of bias")
    bias, counts = xp.promote_all(bias, counts)
    experts, bins = counts.shape
    rank = check_rivals(choices, experts) * xp.sum(counts, 1, keepdims=True)
    below = experts * xp.cumsum(counts, 1) < rank
    at = xp.sum(xp.cast(below, "int32"), 1, keepdims=True)
    here = experts * xp.sum(xp.where(xp.indices(bins, counts) == at, counts, 0.0), 1, keepdims=True)
    before = experts * xp.sum(xp.where(below, counts, 0.0), 1, keepdims=True)
    within = (rank - before) / xp.where(here > 0, here, 1.0)
    at = xp.cast(at, counts.dtype)
    position = (at - xp.mean(at)) + (within - xp.mean(within))  # separate means, because sums of integers are exact
    return (position * (_bounds(xp, bias)[1] / bins))[:, 0]


def _bounds(xp: Namespace[Array], bias: Array) -> tuple[Array, Array]:
    """Returns the lower end of the first bin, and the total width of all bins."""
    low, high = -xp.max(-bias, 0), xp.max(bias, 0)
    return low - 1, high - low + 2
