"""Entropy losses for experts shared by several modalities. A token should prefer one expert. A modality should use many experts.

| here | LIMoE (arXiv 2206.02770) |
|---|---|
| `scores` (T, E), of the tokens of one modality m | p_m(experts given x) |
| mean over tokens (E,) | p~_m(experts) |
| local, global entropy loss | Omega_local, Omega_global |
| `threshold` | tau |

Ambiguity ledger

LI-1: Over which tokens does the global entropy loss average the probabilities?
    Reading: the average covers the tokens of one modality in a routing group. The loss is the mean over the groups.
    Alternative b: the average covers the tokens of one modality in the entire batch.
LI-2: What is the value of `p log p` at p = 0?
    Reading: the value is 0, with a derivative of 0.
    Alternative b: the term is computed as p log(p + epsilon).
LI-3: Are the probabilities computed before noise is added?
    Reading: yes, the softmax of the clean logits is used. No public code of the authors is known.
    Alternative b: no, the probabilities are computed from the noisy logits.
LI-4: Does the global entropy loss decrease as tokens spread over the experts?
    Reading: yes, the loss is minus the entropy of the mean, or max{0, tau + Omega_global} with a threshold.
        By: LIMoE (arXiv 2206.02770), the formula of the threshold.
    Alternative b: no, the loss is the entropy of the mean, which decreases as tokens concentrate on one expert.
        By: koayon/ml-implementations, moet_experiment/hf_model.py, global_entropy_loss.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_positive
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, positive_part
from moespec.spec.values import as_array

__all__ = ["global_entropy_loss", "local_entropy_loss"]

ALGORITHMS = (
    Algorithm("limoe", "Mustafa et al. 2022 (arXiv 2206.02770)", 1, ("global_entropy_loss", "local_entropy_loss")),
)


def local_entropy_loss(scores: ArrayLike) -> Array:
    """Computes `1 / T sum_t H(A[t])` with `H(p) = -sum_e p[e] log p[e]`. The loss is small if each token prefers one expert.

    Args:
        scores: A, (tokens, experts), not negative: the softmax of the logits. All tokens belong to one modality.

    Returns:
        A scalar, from 0 to log E.

    Raises:
        ContractError: `scores` holds a negative number.

    Source: LIMoE (arXiv 2206.02770).

    >>> round(float(local_entropy_loss([[1.0, 0.0], [0.5, 0.5]])), 10)
    0.3465735903
    """
    return np.asanyarray(np.mean(_entropy(_checked(scores))))


def global_entropy_loss(scores: ArrayLike, *, threshold: float | None = None) -> Array:
    """Computes `-H(mean_t A[t])`, which is small if the tokens of a modality use all experts equally. With a threshold, the loss is

        max(0, threshold - H(mean_t A[t]))

    For a threshold of log S, the loss is 0 only if the tokens use at least S experts.

    Args:
        scores: A, (tokens, experts), not negative: the softmax of the logits. All tokens belong to one modality.
        threshold: greater than 0, or None for no threshold.

    Returns:
        A scalar, from -log E to 0; with a threshold, from 0 to the threshold.

    Raises:
        ContractError: `scores` holds a negative number.

    Source: LIMoE (arXiv 2206.02770).

    >>> round(float(global_entropy_loss([[1.0, 0.0], [0.5, 0.5]])), 10)
    -0.5623351446
    >>> round(float(global_entropy_loss([[1.0, 0.0], [0.5, 0.5]], threshold=np.log(2.0))), 10)
    0.1308120359
    """
    entropy = _entropy(np.mean(_checked(scores), axis=0))
    if threshold is None:
        return -entropy
    return np.asanyarray(positive_part(check_positive("threshold", threshold) - entropy))


def _checked(scores: ArrayLike) -> Array:
    """Checks and returns the scores. Raises `ContractError` if a score is negative."""
    array = as_array("scores", scores, "tokens experts")
    if (array.real < 0).any():
        raise ContractError(f"scores: expected no negative numbers, got {array.real.min():g}")
    return array


def _entropy(p: Array) -> Array:
    """Computes the entropy `-sum p log p` along the last axis. Terms with p = 0 are 0."""
    positive = p.real > 0
    return -np.sum(np.where(positive, p * np.log(np.where(positive, p, 1.0)), 0.0), axis=-1)
