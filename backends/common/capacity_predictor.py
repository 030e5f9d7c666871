"""The capacity predictor of DiffMoE: logits, loss, thresholds, the threshold update, and the scores above the thresholds."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.capacity_predictor import check_predictor
from moespec.spec.checks import (
    check_capacity,
    check_mask,
    check_non_negative,
    check_same_shape,
    check_scores,
    check_size,
)

__all__ = ["capacity_logits", "capacity_loss", "capacity_thresholds", "moved_thresholds", "scores_above"]

AXES = "groups tokens experts"


def capacity_logits(xp: Namespace[Array], tokens: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """tokens (G, T, D), w1 (D, H), b1 (H,), w2 (H, E), b2 (E,) -> (G, T, E)."""
    arrays = {"tokens": tokens, "w1": w1, "b1": b1, "w2": w2, "b2": b2}
    axes = ("groups tokens width", "width hidden", "hidden", "hidden experts", "experts")
    for (name, array), names in zip(arrays.items(), axes, strict=True):
        check_scores(name, array, names)
    check_predictor(*arrays.values())  # type: ignore[arg-type]
    tokens, w1, b1, w2, b2 = xp.promote_all(xp.stop_gradient(tokens), w1, b1, w2, b2)
    hidden = xp.product(tokens, w1) + b1
    return xp.product(hidden * xp.sigmoid(hidden), w2) + b2


def capacity_loss(xp: Namespace[Array], logits: Array, mask: Array) -> Array:
    """Returns the loss, averaged over the groups: logits (G, T, E), mask (G, T, E) booleans -> a scalar."""
    check_scores("logits", logits, AXES)
    check_mask("mask", mask, tuple(logits.shape), "logit")
    logits = xp.promote(logits)
    return xp.mean(xp.softplus(xp.where(mask, -logits, logits)))


def capacity_thresholds(xp: Namespace[Array], scores: Array, *, capacity: int) -> Array:
    """Returns, for each expert, the sum of the groups' thresholds, and the number of groups: scores (G, T, E) -> (2, E)."""
    check_scores("scores", scores, AXES)
    columns = xp.swapaxes(xp.promote(xp.stop_gradient(scores)), 1, 2)
    reached = xp.largest(columns, check_capacity(capacity, scores.shape[1]))[0][..., -1]
    return xp.sum(xp.stack([reached, xp.zeros_like(reached) + 1], 1), 0)


def moved_thresholds(xp: Namespace[Array], thresholds: Array, reached: Array, *, decay: float) -> Array:
    """thresholds (E,), reached (2, E) -> (E,)."""
    check_scores("thresholds", thresholds, "experts")
    check_scores("reached", reached, "pair experts")
    check_size("reached", reached, 0, 2, "sums and their number")
    check_size("reached", reached, 1, thresholds.shape[0], "the experts of thresholds")
    decay = check_non_negative("decay", decay)
    thresholds, reached = xp.promote_all(thresholds, reached)
    return decay * thresholds + (1 - decay) * (reached[0] / reached[1])


def scores_above(
    xp: Namespace[Array], scores: Array, predicted: Array, thresholds: Array, *, largest: bool = False
) -> Array:
    """scores (G, T, E), predicted (G, T, E), thresholds (E,) -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    check_scores("predicted", predicted, AXES)
    check_scores("thresholds", thresholds, "experts")
    check_same_shape("predicted", predicted, "scores", scores)
    check_size("thresholds", thresholds, 0, scores.shape[2], "the experts of scores")
    scores, predicted, thresholds = xp.promote_all(scores, predicted, thresholds)
    taken = predicted > thresholds
    if largest:
        order = xp.top_indices(xp.swapaxes(scores, 1, 2), scores.shape[1])
        taken = xp.swapaxes(xp.argsort(order), 1, 2) < xp.sum(xp.where(taken, 1, 0), 1, keepdims=True)
    return xp.where(taken, scores, 0.0)
