"""Strictly balanced gating: the masks of training and evaluation, the gates that they keep, the loss of the thresholds.

Masks carry no gradient; gates do.
"""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.selection import top_indices
from moespec.spec.checks import check_capacity, check_mask, check_scores, check_size

__all__ = ["batchwise_mask", "masked_gates", "threshold_loss", "threshold_mask"]

AXES = "groups tokens experts"


def batchwise_mask(gates: Tensor, *, capacity: int) -> Tensor:
    """gates (G, T, E) -> (G, T, E) booleans."""
    check_scores("gates", gates, AXES)
    capacity = check_capacity(capacity, gates.shape[1])
    chosen = top_indices(gates.mT, capacity).long()
    return torch.zeros_like(gates, dtype=torch.bool).scatter(1, chosen.mT, True)


def threshold_mask(gates: Tensor, thresholds: Tensor) -> Tensor:
    """gates (G, T, E), thresholds (E,) -> (G, T, E) booleans."""
    gates, thresholds = _pair(gates, thresholds)
    return gates > thresholds


def masked_gates(gates: Tensor, mask: Tensor) -> Tensor:
    """gates (G, T, E), mask (G, T, E) booleans -> (G, T, E)."""
    check_scores("gates", gates, AXES)
    check_mask("mask", mask, tuple(gates.shape), "gate")
    kept = torch.where(mask, widen(gates), 0.0)
    total = kept.sum(dim=2, keepdim=True)
    return kept / torch.where(total > 0, total, 1.0)


def threshold_loss(gates: Tensor, thresholds: Tensor, *, capacity: int) -> Tensor:
    """The mean over the groups: gates (G, T, E), thresholds (E,) -> a scalar."""
    wanted = batchwise_mask(gates, capacity=capacity)
    gates, thresholds = _pair(gates, thresholds)
    side = threshold_mask(gates, thresholds).to(gates.dtype) - wanted.to(gates.dtype)
    return (side * (gates - thresholds)).sum(dim=(1, 2)).mean()


def _pair(gates: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype, after their checks."""
    check_scores("gates", gates, AXES)
    check_scores("thresholds", thresholds, "experts")
    check_size("thresholds", thresholds, 0, gates.shape[2], "the experts of gates")
    dtype = wide(gates.dtype, thresholds.dtype)
    return gates.to(dtype), thresholds.to(dtype)
