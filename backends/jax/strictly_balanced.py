"""Strictly balanced gating: the masks of training and evaluation, the gates that they keep, the loss of the thresholds.

Shape comments: G groups, T tokens, E experts. Masks carry no gradient; gates do.
"""

import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, top_indices, wide
from moespec.spec.checks import check_capacity, check_mask, check_scores, check_size

__all__ = ["batchwise_mask", "masked_gates", "threshold_loss", "threshold_mask"]


def batchwise_mask(gates: Array, *, capacity: int) -> Array:
    """gates (G, T, E) -> (G, T, E) booleans."""
    check_scores("gates", gates, "groups tokens experts")
    capacity = check_capacity(capacity, gates.shape[1])
    columns = jnp.swapaxes(wide(gates), 1, 2)
    chosen = top_indices(columns, capacity)
    mask = jnp.put_along_axis(jnp.zeros(columns.shape, bool), chosen, True, axis=2, inplace=False)
    return jnp.swapaxes(mask, 1, 2)


def threshold_mask(gates: Array, thresholds: Array) -> Array:
    """gates (G, T, E), thresholds (E,) -> (G, T, E) booleans."""
    gates, thresholds = _pair(gates, thresholds)
    return gates > thresholds


def masked_gates(gates: Array, mask: Array) -> Array:
    """gates (G, T, E), mask (G, T, E) booleans -> (G, T, E)."""
    check_scores("gates", gates, "groups tokens experts")
    check_mask("mask", mask, gates.shape, "gate")
    kept = jnp.where(mask, wide(gates), 0)
    total = jnp.sum(kept, axis=2, keepdims=True)
    return kept / jnp.where(total > 0, total, 1)


def threshold_loss(gates: Array, thresholds: Array, *, capacity: int) -> Array:
    """The mean over the groups: gates (G, T, E), thresholds (E,) -> a scalar."""
    wanted = batchwise_mask(gates, capacity=capacity)
    gates, thresholds = _pair(gates, thresholds)
    taken = threshold_mask(gates, thresholds)
    side = lax.stop_gradient(taken.astype(gates.dtype) - wanted.astype(gates.dtype))
    return jnp.mean(jnp.sum(side * (gates - thresholds), axis=(1, 2)))


def _pair(gates: Array, thresholds: Array) -> tuple[Array, Array]:
    check_scores("gates", gates, "groups tokens experts")
    check_scores("thresholds", thresholds, "experts")
    check_size("thresholds", thresholds, 0, gates.shape[2], "the experts of gates")
    return wide(gates), wide(thresholds)
