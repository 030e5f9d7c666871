"""The capacity predictor of DiffMoE decides at evaluation which tokens, or only how many tokens, each expert takes.

| here | DiffMoE (arXiv 2503.14487), KwaiVGI/DiffMoE |
|---|---|
| `capacity_logits` | capacity_predictor, capacity_pred |
| `mask` (T, E) | ones, the tokens that an expert takes in training |
| `thresholds` (E,) | expert_threshold |
| `decay` | ema_decay, 0.95 |

Ambiguity ledger

CE-1: What are the initial thresholds?
    Reading: the thresholds start at 0, which is below every probability.
        By: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.update_threshold.
    Alternative b: the thresholds start at the values computed in the first step.
        By: theAdamColton/diffmoe, diffmoe/diffmoe.py, EMAParameter.forward.
CE-2: What is the activation of the predictor?
    Reading: the activation of the predictor is SiLU.
        By: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.
    Alternative b: the activation of the predictor is GELU.
        By: theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.
CE-3: Does an expert take a token whose predicted probability equals the threshold?
    Reading: no, the probability must be above the threshold.
        By: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.forward_eval.
    Alternative b: yes, a probability equal to the threshold is sufficient.
        By: theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.forward_eval.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gated_experts import silu
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_mask, check_non_negative, check_same_shape, check_size
from moespec.spec.numerics import Array, Shared, softplus, stable_order, stop_gradient
from moespec.spec.routing import Summed
from moespec.spec.values import as_array, even

__all__ = ["capacity_logits", "capacity_loss", "capacity_thresholds", "moved_thresholds", "scores_above"]

AXES = "tokens experts"
ALGORITHMS = (Algorithm("capacity_predictor", "Shi et al. 2025 (arXiv 2503.14487)", 2, tuple(__all__)),)


def capacity_logits(tokens: ArrayLike, w1: Shared, b1: Shared, w2: Shared, b2: Shared) -> Array:
    """Computes the logits of the probability that an expert takes a token, `silu(x w1 + b1) w2 + b2`. No gradient flows to the tokens.

    Args:
        tokens: x, (tokens, width).
        w1: (width, hidden).
        b1: (hidden,).
        w2: (hidden, experts).
        b2: (experts,).

    Returns:
        (tokens, experts).

    Source: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.

    >>> capacity_logits([[1.0], [2.0]], [[0.0]], [1.0], [[2.0, 0.0]], [0.0, 0.5]).round(6).tolist()
    [[1.462117, 0.5], [1.462117, 0.5]]
    """
    tokens, w1 = as_array("tokens", tokens, "tokens width"), as_array("w1", w1, "width hidden")
    b1 = as_array("b1", b1, "hidden")
    w2, b2 = as_array("w2", w2, "hidden experts"), as_array("b2", b2, "experts")
    check_predictor(tokens, w1, b1, w2, b2)
    return silu(stop_gradient(tokens) @ w1 + b1) @ w2 + b2


def check_predictor(tokens: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> None:
    """Raises `ShapeError` unless the axes of the tokens and of the parameters agree in size."""
    check_size("w1", w1, 0, tokens.shape[-1], "the width of tokens")
    check_size("b1", b1, 0, w1.shape[1], "the hidden width of w1")
    check_size("w2", w2, 0, w1.shape[1], "the hidden width of w1")
    check_size("b2", b2, 0, w2.shape[1], "the experts of w2")


def capacity_loss(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Computes the binary cross-entropy of the predictor, averaged over tokens and experts:

        loss = 1 / (T E) sum_te log(1 + exp(L[t, e])) - M[t, e] L[t, e]

    Args:
        logits: L, (tokens, experts), from `capacity_logits`.
        mask: M, (tokens, experts) booleans, from `batchwise_mask`.

    Returns:
        A scalar, at least 0.

    Source: KwaiVGI/DiffMoE, diffusion/rectified_flow.py (BCEWithLogitsLoss).

    >>> round(float(capacity_loss([[0.0, 2.0]], [[True, False]])), 6)
    1.410038
    """
    logits, mask = as_array("logits", logits, "tokens experts"), even("mask", mask)
    check_mask("mask", mask, logits.shape, "logit")
    return np.asarray(np.mean(softplus(np.where(mask, -logits, logits))))


def capacity_thresholds(scores: ArrayLike, *, capacity: int) -> Summed:
    """Returns the C-th largest score of each expert, and a count of 1 for the group.

    The caller sums the results over groups, micro-batches and devices. The mean score is the sum of scores divided by the sum of counts.

    Args:
        scores: (tokens, experts), the sigmoid of `capacity_logits`.
        capacity: C, from 1 to tokens.

    Returns:
        (2, experts): scores and counts, summed if there are several groups.

    Source: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.update_threshold.

    >>> capacity_thresholds([[0.5, 0.25], [0.75, 0.5], [0.25, 1.0]], capacity=2).tolist()
    [[0.5, 0.5], [1.0, 1.0]]
    """
    scores = stop_gradient(as_array("scores", scores, "tokens experts"))
    order = stable_order(scores, axis=0)[check_capacity(capacity, len(scores)) - 1]
    reached = np.take_along_axis(scores, order[None], 0)[0]
    return np.stack([reached, np.ones_like(reached)])


def moved_thresholds(thresholds: Shared, reached: Shared, *, decay: float) -> Array:
    """Returns the exponential moving average of the thresholds after a step: `decay t[e] + (1 - decay) reached[0, e] / reached[1, e]`.

    Args:
        thresholds: t, (experts,).
        reached: (2, experts), from `capacity_thresholds`, summed over all groups of the step.
        decay: the weight of the old thresholds, at least 0.

    Returns:
        (experts,).

    Source: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.update_threshold.

    >>> moved_thresholds([0.5, 0.0], [[1.0, 0.5], [4.0, 4.0]], decay=0.5).tolist()
    [0.375, 0.0625]
    """
    thresholds, reached = as_array("thresholds", thresholds, "experts"), as_array("reached", reached, "pair experts")
    check_size("reached", reached, 0, 2, "sums and their number")
    check_size("reached", reached, 1, len(thresholds), "the experts of thresholds")
    decay = check_non_negative("decay", decay)
    return decay * thresholds + (1 - decay) * (reached[0] / reached[1])


def scores_above(scores: ArrayLike, predicted: ArrayLike, thresholds: Shared, *, largest: bool = False) -> Array:
    """Returns `scores[t, e]` if expert e takes token t at evaluation (`predicted[t, e] > thresholds[e]`), else 0.

    Args:
        scores: (tokens, experts).
        predicted: (tokens, experts), the sigmoid of `capacity_logits`. No gradient flows to `predicted`.
        thresholds: (experts,).
        largest: whether an expert takes the n tokens with the largest scores, if n tokens are above its threshold (ties by lower index).

    Returns:
        (tokens, experts), for `expert_choice(..., drop_zero=True)`.

    Source: theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.forward_eval. `largest`: KwaiVGI/DiffMoE,
    models/models_DiffMoE.py, SparseMoEBlock.forward_eval.

    >>> scores_above([[0.5], [0.25]], [[0.5], [0.75]], [0.5]).tolist()
    [[0.0], [0.25]]
    >>> scores_above([[0.5], [0.25]], [[0.5], [0.75]], [0.5], largest=True).tolist()
    [[0.5], [0.0]]
    """
    scores, predicted = as_array("scores", scores, AXES), as_array("predicted", predicted, AXES)
    thresholds = as_array("thresholds", thresholds, "experts")
    check_same_shape("predicted", predicted, "scores", scores)
    check_size("thresholds", thresholds, 0, scores.shape[1], "the experts of scores")
    taken = predicted.real > thresholds.real
    if largest:  # `predicted` then determines only the number of tokens of each expert
        taken = stable_order(-stable_order(scores, axis=0), axis=0) < taken.sum(axis=0)
    return np.where(taken, scores, 0.0)
