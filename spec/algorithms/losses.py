"""Auxiliary losses that balance importance and load. Each loss is an unweighted scalar for one routing group.

| here | Routers (arXiv 2401.15969), appendix A |
|---|---|
| `logits` (T, E) | XW |
| `noisy_logits` (T, E) | XW + sigma epsilon |
| `noise_std` | sigma |
| threshold (T,) | eta, the k-th largest noisy logit |

Ambiguity ledger

AL-1: Which standard deviation does the coefficient of variation use?
    Reading: the coefficient of variation uses the population standard deviation, with divisor E.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._importance_auxiliary_loss;
        tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, cv_squared.
    Alternative b: the coefficient of variation uses the unbiased standard deviation, with divisor E - 1.
        By: microsoft/Tutel, tutel/impls/losses.py, load_importance_loss; davidmrau/mixture-of-experts, moe.py,
        MoE.cv_squared.
AL-2: Does the threshold of the load loss include the logit of the expert itself?
    Reading: yes, the threshold is the K-th largest noisy logit of the token, over all experts.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._load_auxiliary_loss.
    Alternative b: no, the threshold is the K-th largest noisy logit of the other experts.
        By: Shazeer et al. 2017 (arXiv 1701.06538), appendix A; tensorflow/tensor2tensor,
        tensor2tensor/utils/expert_utils.py, _prob_in_top_k.
    Alternative c: yes, but the threshold is compared with the expert's probability instead of the expert's logit.
        By: microsoft/Tutel, tutel/impls/losses.py, load_importance_loss (called in tutel/impls/moe_layer.py with
        the softmax of the logits).
AL-4: Is the load summed or averaged over tokens?
    Reading: the load is summed over tokens.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, noisy_top_k_gating; microsoft/Tutel,
        tutel/impls/losses.py, load_importance_loss.
    Alternative b: the load is averaged over tokens. The coefficient of variation is the same.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._load_auxiliary_loss.
AL-6: From which logits or gates is the importance loss computed?
    Reading: the importance loss is computed from the clean logits.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics;
        microsoft/Tutel, tutel/impls/losses.py, load_importance_loss.
    Alternative b: the importance loss is computed from the sparse noisy gates.
        By: Shazeer et al. 2017 (arXiv 1701.06538), section 4; tensorflow/tensor2tensor,
        tensor2tensor/utils/expert_utils.py, local_moe.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_positive, check_same_shape
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, normal_cdf, stable_order, variance
from moespec.spec.values import as_array

__all__ = ["importance_loss", "load_loss"]

ALGORITHMS = (
    Algorithm("importance_loss", "Liu et al. 2024 (arXiv 2401.15969), appendix A", 1, ("importance_loss",)),
    Algorithm("load_loss", "Liu et al. 2024 (arXiv 2401.15969), eqs. (12)-(15)", 1, ("load_loss",)),
)


def importance_loss(scores: ArrayLike) -> Array:
    """Computes the squared coefficient of variation of the importance of the experts:

        importance[e] = sum_t A[t, e],    loss = variance(importance) / mean(importance)^2

    Args:
        scores: A, (tokens, experts), not negative: the softmax of the logits without noise.

    Returns:
        A scalar, from 0 (balanced) to E - 1 (all importance on one expert).

    Raises:
        ContractError: `scores` holds a negative number, or all experts have importance 0.

    Source: Routers, appendix A; V-MoE (arXiv 2106.05974); Shazeer et al. 2017 (arXiv 1701.06538).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> round(float(importance_loss(softmax_affinity(LOGITS))), 12)
    0.185471562411
    """
    scores = as_array("scores", scores, "tokens experts")
    if (scores.real < 0).any():
        raise ContractError(f"scores: expected no negative numbers, got {scores.real.min():g}")
    return squared_variation("scores", scores.sum(axis=0))


def load_loss(logits: ArrayLike, noisy_logits: ArrayLike, *, choices: int, noise_std: float) -> Array:
    """Computes the squared coefficient of variation of the load, the expected number of tokens that choose an expert:

        load[e] = sum_t p[t, e],    p[t, e] = 1 - Phi((threshold[t] - L[t, e]) / noise_std)

    where `threshold[t]` is the K-th largest noisy logit of the token and Phi is the distribution function of the
    standard normal. p is the probability that a noisy logit reaches the threshold if the noise of this logit is drawn again. The gradient
    flows through L and the value of the threshold. Even routers that select by a transport plan compute this loss from the logits.

    Args:
        logits: L, (tokens, experts), without noise.
        noisy_logits: (tokens, experts), used for the selection.
        choices: K, from 1 to experts.
        noise_std: standard deviation of the noise, greater than 0.

    Returns:
        A scalar, from 0 (balanced) to E - 1.

    Raises:
        ContractError: all experts have load 0.

    Source: Routers, eqs. (12)-(15); V-MoE (arXiv 2106.05974).

    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> round(float(load_loss(LOGITS, LOGITS + NOISE / 3, choices=1, noise_std=1 / 3)), 12)
    0.204617702027
    >>> round(float(load_loss(LOGITS, LOGITS + NOISE / 3, choices=2, noise_std=1 / 3)), 12)
    0.140129843771
    """
    logits = as_array("logits", logits, "tokens experts")
    noisy_logits = as_array("noisy_logits", noisy_logits, "tokens experts")
    check_same_shape("noisy_logits", noisy_logits, "logits", logits)
    check_choices(choices, logits.shape[1])
    check_positive("noise_std", noise_std)
    last_choice = stable_order(noisy_logits)[:, choices - 1 : choices]
    threshold = np.take_along_axis(noisy_logits, last_choice, axis=1)
    probability = 1.0 - normal_cdf((threshold - logits) / noise_std)
    return squared_variation("logits", probability.sum(axis=0))


def squared_variation(name: str, values: Array) -> Array:
    """Returns the variance divided by the squared mean. Because no square root is taken, the derivative at equal values is 0, not NaN."""
    mean = np.mean(values)
    if mean.real == 0:
        raise ContractError(f"{name}: every expert has a total of 0, so the coefficient of variation is undefined")
    return variance(values) / (mean * mean)
