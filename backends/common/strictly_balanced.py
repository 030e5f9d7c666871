"""Strictly balanced gating: the masks for training and evaluation, the masked gates, and the loss that trains the thresholds.

Gates carry a gradient; masks do not.
"""

from collections.abc import Sequence

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import check_capacity, check_mask, check_scores, check_size

__all__ = ["batchwise_mask", "masked_gates", "threshold_loss", "threshold_mask"]

AXES = "groups tokens experts"


def batchwise_mask(xp: Namespace[Array], gates: Array, *, capacity: int) -> Array:
    """gates (G, T, E) -> (G, T, E) booleans."""
    check_scores("gates", gates, AXES)
    capacity = check_capacity(capacity, gates.shape[1])
    columns = xp.swapaxes(xp.promote(gates), 1, 2)
    return xp.put_true(xp.swapaxes(xp.top_indices(columns, capacity), 1, 2), gates, 1)


def threshold_mask(xp: Namespace[Array], gates: Array, thresholds: Array) -> Array:
    """gates (G, T, E), thresholds (E,) -> (G, T, E) booleans."""
    gates, thresholds = _pair(xp, gates, thresholds)
    return gates > thresholds


def masked_gates(xp: Namespace[Array], gates: Array, mask: Array) -> Array:
    """gates (G, T, E), mask (G, T, E) booleans -> (G, T, E)."""
    check_scores("gates", gates, AXES)
    check_mask("mask", mask, tuple(gates.shape), "gate")
    masked = xp.where(mask, xp.promote(gates), 0.0)
    total = xp.sum(masked, 2, keepdims=True)
    return masked / xp.where(total > 0, total, 1.0)


def threshold_loss(xp: Namespace[Array], gates: Array, thresholds: Array, *, capacity: int) -> Array:
    """Returns the loss, averaged over the groups: gates (G, T, E), thresholds (E,) -> a scalar."""
    target = batchwise_mask(xp, gates, capacity=capacity)
    gates, thresholds = _pair(xp, gates, thresholds)
    side = xp.cast(gates > thresholds, gates.dtype) - xp.cast(target, gates.dtype)
    return xp.mean(xp.sum(side * (gates - thresholds), (1, 2)))


def _pair(xp: Namespace[Array], gates: Array, thresholds: Array) -> Sequence[Array]:
    check_scores("gates", gates, AXES)
    check_scores("thresholds", thresholds, "experts")
    check_size("thresholds", thresholds, 0, gates.shape[2], "the experts of gates")
    return xp.promote_all(gates, thresholds)
