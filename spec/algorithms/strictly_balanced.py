"""Strictly balanced gating: in training each expert takes as many tokens, at evaluation those above its threshold.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix F, eqs. (15)-(20) |
|---|---|
| `gates` (T, E) | G_sigma(x), the softmax; X in eqs. (18) and (20) |
| `batchwise_mask`, `threshold_mask` (T, E) | M_batchwise, M_threshold |
| `capacity` | m = k \\|X\\| / n |
| `thresholds` (E,) | T |
| `masked_gates` (T, E) | G(x) |

The batch of the paper is a group here.

Ambiguity ledger

BG-1: What are the gates of a token that no expert takes, whose kept gates have the sum 0?
    Reading: 0, so that the layer adds nothing to it.
    Alternative b: the quotient as it is written, NaN.
BG-2: Does the loss of the thresholds train the gates too?
    Reading: yes, eq. (20) holds nothing constant.
    Alternative b: no, it trains the thresholds alone.
BG-3: Where do the thresholds start?
    Reading: at 1 / E, the mean of the gates.
    Alternative b: at 0, below every gate.

Often done differently

BG-4: Are the gates that the mask keeps divided by their sum?
    Reading: yes.
        By: the paper, eq. (16).
    Alternative b: no.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter (Expert Choice).
BG-5: Which tokens do the experts take at evaluation?
    Reading: those whose gate is above the threshold of the expert, however many.
        By: the paper, eq. (19).
    Alternative b: their best, as in training.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter (Expert Choice).
BG-6: Is the loss of the thresholds summed or averaged over tokens and experts?
    Reading: summed.
        By: the paper, eq. (20).
    Alternative b: averaged.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_mask, check_size
from moespec.spec.numerics import Array, Shared, stable_order
from moespec.spec.values import as_array, even

__all__ = ["batchwise_mask", "masked_gates", "threshold_loss", "threshold_mask"]

PAPER = "Shazeer et al. 2017 (arXiv 1701.06538)"
ALGORITHMS = (
    Algorithm("masked_gates", f"{PAPER}, eqs. (16)-(19)", 1, ("masked_gates", "batchwise_mask", "threshold_mask")),
    Algorithm("threshold_loss", f"{PAPER}, eq. (20)", 1, ("threshold_loss",)),
)


def batchwise_mask(gates: ArrayLike, *, capacity: int) -> Array:
    """Which tokens each expert takes in training: the m with its largest gates, so that all experts take as many.

    Args:
        gates: (tokens, experts). Among equals the lower token is taken.
        capacity: m, from 1 to tokens.

    Returns:
        (tokens, experts) booleans, m of them true in each column.

    Source: Shazeer et al. 2017, eq. (18).

    >>> batchwise_mask([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]], capacity=2).astype(int).tolist()
    [[1, 0], [1, 1], [0, 1]]
    """
    gates = as_array("gates", gates, "tokens experts")
    mask = np.zeros(gates.shape, bool)
    np.put_along_axis(mask, stable_order(gates, axis=0)[: check_capacity(capacity, len(gates))], True, axis=0)
    return mask


def threshold_mask(gates: ArrayLike, thresholds: Shared) -> Array:
    """Which tokens each expert takes at evaluation: those whose gate is above its threshold.

    Args:
        gates: (tokens, experts).
        thresholds: (experts,).

    Returns:
        (tokens, experts) booleans: `gates > thresholds`.

    Source: Shazeer et al. 2017, eq. (19).

    >>> threshold_mask([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], [0.125, 0.5]).astype(int).tolist()
    [[1, 0], [1, 0], [1, 1]]
    """
    gates, thresholds = _pair(gates, thresholds)
    return gates.real > thresholds.real


def masked_gates(gates: ArrayLike, mask: ArrayLike) -> Array:
    """The gates that a mask keeps, divided by their sum over the experts of the token:

        G[t, e] = g[t, e] M[t, e] / sum_e' g[t, e'] M[t, e']

    Args:
        gates: g, (tokens, experts), at least 0.
        mask: M, (tokens, experts) booleans.

    Returns:
        (tokens, experts); the sum of a row is 1, or 0 if its kept gates have the sum 0.

    Source: Shazeer et al. 2017, eq. (16).

    >>> masked_gates([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], [[True, False, True], [False, False, False]]).round(6).tolist()
    [[0.666667, 0.0, 0.333333], [0.0, 0.0, 0.0]]
    """
    gates, mask = as_array("gates", gates, "tokens experts"), even("mask", mask)
    check_mask("mask", mask, gates.shape, "gate")
    masked = np.where(mask, gates, 0.0)
    total = masked.sum(axis=1, keepdims=True)
    return masked / np.where(total.real > 0, total, 1.0)


def threshold_loss(gates: ArrayLike, thresholds: Shared, *, capacity: int) -> Array:
    """What trains the thresholds: it is 0 where both masks are the same, and greater elsewhere,

        loss = sum_te (M_threshold[t, e] - M_batchwise[t, e]) (g[t, e] - T[e])

    Its derivative by a threshold is the number of tokens that the expert is to take, less that of those above the
    threshold.

    Args:
        gates: g, (tokens, experts).
        thresholds: T, (experts,).
        capacity: m, from 1 to tokens.

    Returns:
        A scalar of at least 0.

    Source: Shazeer et al. 2017, eq. (20).

    >>> [float(threshold_loss([[0.75], [0.5], [0.25]], [t], capacity=1)) for t in (0.5, 0.375, 1.0)]
    [0.0, 0.125, 0.25]
    """
    gates, thresholds = _pair(gates, thresholds)
    taken, wanted = threshold_mask(gates, thresholds), batchwise_mask(gates, capacity=capacity)
    return np.sum((taken.astype(float) - wanted) * (gates - thresholds))


def _pair(gates: ArrayLike, thresholds: ArrayLike) -> tuple[Array, Array]:
    gates, thresholds = as_array("gates", gates, "tokens experts"), as_array("thresholds", thresholds, "experts")
    check_size("thresholds", thresholds, 0, gates.shape[1], "the experts of gates")
    return gates, thresholds
