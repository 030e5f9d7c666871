"""Strictly balanced gating: experts take equal numbers of tokens in training, and all tokens with a gate above a threshold at evaluation.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix F, eqs. (15)-(20) |
|---|---|
| `gates` (T, E) | G_sigma(x), the softmax; X in eqs. (18) and (20) |
| `batchwise_mask`, `threshold_mask` (T, E) | M_batchwise, M_threshold |
| `capacity` | m = k \\|X\\| / n |
| `thresholds` (E,) | T |
| `masked_gates` (T, E) | G(x) |

A routing group here corresponds to a batch in the paper.

Ambiguity ledger

BG-1: What are the gates of a token that no expert takes, for which the division would be 0 / 0?
    Reading: the gates are 0, so the layer adds nothing to the token.
    Alternative b: the gates are NaN, because the quotient is computed as written.
BG-2: Does the threshold loss also train the gates?
    Reading: yes, because eq. (20) treats no factor as constant.
    Alternative b: no, the threshold loss trains only the thresholds.
BG-3: What are the initial thresholds?
    Reading: the thresholds start at 1 / E, which is the mean of the gates.
    Alternative b: the thresholds start at 0, which is below every gate.

Often done differently

BG-4: Are a token's gates inside the mask divided by their sum?
    Reading: yes, the gates inside the mask are divided by their sum.
        By: the paper, eq. (16).
    Alternative b: no, the gates inside the mask are not divided.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter (Expert Choice).
BG-5: Which tokens do the experts take at evaluation?
    Reading: each expert takes all tokens with a gate above the expert's threshold.
        By: the paper, eq. (19).
    Alternative b: each expert takes its best tokens, as in training.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter (Expert Choice).
BG-6: Is the threshold loss summed or averaged over tokens and experts?
    Reading: the threshold loss is summed over tokens and experts.
        By: the paper, eq. (20).
    Alternative b: the threshold loss is averaged over tokens and experts.
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
    """Returns the mask of the tokens that each expert takes in training: the m tokens with the largest gates for the expert.

    Args:
        gates: (tokens, experts). Ties go to the lower token index.
        capacity: m, from 1 to tokens.

    Returns:
        (tokens, experts) booleans, with m true entries in each column.

    Source: Shazeer et al. 2017, eq. (18).

    >>> batchwise_mask([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]], capacity=2).astype(int).tolist()
    [[1, 0], [1, 1], [0, 1]]
    """
    gates = as_array("gates", gates, "tokens experts")
    mask = np.zeros(gates.shape, bool)
    np.put_along_axis(mask, stable_order(gates, axis=0)[: check_capacity(capacity, len(gates))], True, axis=0)
    return mask


def threshold_mask(gates: ArrayLike, thresholds: Shared) -> Array:
    """Returns the mask of the tokens that each expert takes at evaluation: all tokens with a gate above the expert's threshold.

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
    """Sets the gates outside the mask to 0 and divides the remaining gates of each token by their sum:

        G[t, e] = g[t, e] M[t, e] / sum_e' g[t, e'] M[t, e']

    Args:
        gates: g, (tokens, experts), at least 0.
        mask: M, (tokens, experts) booleans.

    Returns:
        (tokens, experts). Each row sums to 1, or to 0 if the mask keeps no positive gate of the token.

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
    """Computes the loss that trains the thresholds. The loss is never negative, and is 0 if both masks are equal:

        loss = sum_te (M_threshold[t, e] - M_batchwise[t, e]) (g[t, e] - T[e])

    The derivative of the loss with respect to a threshold is m minus the number of tokens above the threshold.

    Args:
        gates: g, (tokens, experts).
        thresholds: T, (experts,).
        capacity: m, from 1 to tokens.

    Returns:
        A scalar, at least 0.

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
