"""Noisy top-k gating: adds noise of a learned scale to the logits, and applies the softmax only to the chosen experts.

| here | Shazeer et al. 2017 (arXiv 1701.06538), eqs. (3)-(5), (8)-(11) |
|---|---|
| `logits` L, `noise_logits` N (T, E) | x W_g, x W_noise |
| `noise` (T, E) | StandardNormal() |
| `noisy_logits` H (T, E) | H(x) |
| `noisy_top_k_affinity` (T, E) | G(x) |
| `choices` K | k |
| threshold (T, E) | kth_excluding(H(x), k, i) |

With K = 1, the gate is always 1, so only the auxiliary losses train the router's kernels.

Ambiguity ledger

NK-2: Does the noise scale have a lower bound above 0?
    Reading: no, the noise scale is the softplus of the noise logit. This scale can be arbitrarily close to 0.
        By: the paper, eq. (4).
    Alternative b: yes, 0.01 is added to the softplus of the noise logit.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, noisy_top_k_gating;
        davidmrau/mixture-of-experts, moe.py, MoE.noisy_top_k_gating.
NK-3: What is the capacity of an expert?
    Reading: without a capacity factor, the capacity is unlimited, so every token has a slot.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, SparseDispatcher.
    Alternative b: a capacity factor determines the capacity, as in later work. Choices beyond the capacity are dropped.
NK-5: What is the load of an expert if there is no noise?
    Reading: the load is undefined, so there is no load loss at evaluation.
    Alternative b: the load is the number of tokens with a gate above 0.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, noisy_top_k_gating (noisy_gating=False);
        davidmrau/mixture-of-experts, moe.py, MoE.noisy_top_k_gating.
NK-6: What is the load of an expert if the noise scale vanishes?
    Reading: the limit. A token adds 1, 1/2 or 0 for a clean logit above, at or below the threshold. Scales below 2^-63 give no gradient.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, _normal_distribution_cdf.
    Alternative b: the quotient of eq. (9) is computed as written. In float32, its gradient is NaN for noise logits below -44.
NK-7: What is the load of an expert if K = E, so that fewer than K other experts exist?
    Reading: the load is the number of tokens with a gate above 0. Every expert has load T, so the load loss is 0.
        By: tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, noisy_top_k_gating (k == num_experts);
        davidmrau/mixture-of-experts, moe.py, MoE.noisy_top_k_gating.
    Alternative b: an error is raised.

Often done differently

NK-1: Are experts chosen before or after the softmax?
    Reading: experts are chosen before the softmax, so the K gates of a token sum to 1.
        By: the paper, eqs. (3)-(5); tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, noisy_top_k_gating.
    Alternative b: experts are chosen after the softmax. The K gates are not divided by their sum.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter.
NK-4: From which gates is the importance computed?
    Reading: the importance is computed from the sparse noisy gates G.
        By: the paper, eq. (6); tensorflow/tensor2tensor, tensor2tensor/utils/expert_utils.py, local_moe.
    Alternative b: the importance is computed from the softmax of all clean logits.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.choice_probability import choice_probability
from moespec.spec.algorithms.losses import squared_variation
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_same_shape
from moespec.spec.numerics import Array, softmax, softplus, stable_order
from moespec.spec.values import as_array

__all__ = ["noisy_top_k_affinity", "noisy_top_k_load_loss", "noisy_top_k_logits"]

ALGORITHMS = (
    Algorithm(
        "noisy_top_k_affinity",
        "Shazeer et al. 2017 (arXiv 1701.06538), eqs. (3)-(5)",
        2,
        ("noisy_top_k_affinity", "noisy_top_k_logits"),
    ),
    Algorithm(
        "noisy_top_k_load_loss", "Shazeer et al. 2017 (arXiv 1701.06538), eqs. (8)-(11)", 2, ("noisy_top_k_load_loss",)
    ),
)


def noisy_top_k_logits(logits: ArrayLike, noise_logits: ArrayLike, noise: ArrayLike | None) -> Array:
    """Returns the noisy logits `H = L + noise * log(1 + exp(N))`. With `noise=None` (evaluation), the logits are returned unchanged.

    Args:
        logits: L, (tokens, experts).
        noise_logits: N, (tokens, experts).
        noise: (tokens, experts), standard normal, or None.

    Returns:
        H, (tokens, experts).

    Source: Shazeer et al. 2017, eq. (4).

    >>> noisy_top_k_logits([[1.0, 0.0]], [[0.0, 0.0]], [[1.0, -1.0]]).round(10).tolist()  # the scale is log 2
    [[1.6931471806, -0.6931471806]]
    """
    logits, noise_logits = _pair(logits, noise_logits, "noise_logits")
    if noise is None:
        return logits
    noise = as_array("noise", noise, "tokens experts")
    check_same_shape("noise", noise, "logits", logits)
    return logits + noise * softplus(noise_logits)


def noisy_top_k_affinity(noisy_logits: ArrayLike, *, choices: int) -> Array:
    """Computes the gates, a softmax over the K experts with the largest noisy logits. All other gates are 0:

        G[t, e] = exp(H[t, e]) / sum_e' in top K exp(H[t, e'])

    Args:
        noisy_logits: H, (tokens, experts). Ties go to the lower index.
        choices: K, from 1 to experts.

    Returns:
        (tokens, experts); in each row, K entries are positive and sum to 1.

    Source: Shazeer et al. 2017, eqs. (3) and (5).

    >>> from moespec.spec.examples import LOGITS
    >>> for row in noisy_top_k_affinity(LOGITS, choices=2)[:3].round(10).tolist():
    ...     print(row)
    [0.7310585786, 0.2689414214, 0.0]
    [0.8175744762, 0.1824255238, 0.0]
    [0.4378234991, 0.5621765009, 0.0]
    >>> noisy_top_k_affinity([[0.5, 0.5, 0.5]], choices=2).tolist()
    [[0.5, 0.5, 0.0]]
    """
    noisy_logits = as_array("noisy_logits", noisy_logits, "tokens experts")
    check_choices(choices, noisy_logits.shape[1])
    chosen = stable_order(noisy_logits)[:, :choices]
    gates = np.zeros_like(noisy_logits)
    np.put_along_axis(gates, chosen, softmax(np.take_along_axis(noisy_logits, chosen, axis=1)), axis=1)
    return gates


def noisy_top_k_load_loss(
    logits: ArrayLike, noise_logits: ArrayLike, noisy_logits: ArrayLike, *, choices: int
) -> Array:
    """Computes the squared coefficient of variation of the load, the expected number of tokens that choose an expert:

        load[e] = sum_t P[t, e],    P[t, e] = Phi((L[t, e] - threshold[t, e]) / log(1 + exp(N[t, e])))

    where `threshold[t, e]` is the K-th largest noisy logit of the *other* experts. P is the probability that token t
    chooses expert e if only the noise of `H[t, e]` is drawn again. The gradient flows through L, N and the value of the
    threshold. With K = E, every expert is chosen and P is 1.

    Args:
        logits: L, (tokens, experts), without noise.
        noise_logits: N, (tokens, experts).
        noisy_logits: H, (tokens, experts), the logits used for the selection.
        choices: K, from 1 to experts.

    Returns:
        A scalar, from 0 (balanced) to E - 1.

    Raises:
        ContractError: all experts have load 0.

    Source: Shazeer et al. 2017, eqs. (8)-(11).

    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> noisy = noisy_top_k_logits(LOGITS, 0 * LOGITS, NOISE)
    >>> round(float(noisy_top_k_load_loss(LOGITS, 0 * LOGITS, noisy, choices=1)), 12)
    0.433987856924
    >>> round(float(noisy_top_k_load_loss(LOGITS, 0 * LOGITS, noisy, choices=2)), 12)
    0.084824473048
    """
    logits, noise_logits = _pair(logits, noise_logits, "noise_logits")
    logits, noisy_logits = _pair(logits, noisy_logits, "noisy_logits")
    check_choices(choices, logits.shape[1])
    return squared_variation(
        "logits", choice_probability(logits, noise_logits, noisy_logits, choices=choices).sum(axis=0)
    )


def _pair(logits: ArrayLike, other: ArrayLike, name: str) -> tuple[Array, Array]:
    logits, array = as_array("logits", logits, "tokens experts"), as_array(name, other, "tokens experts")
    check_same_shape(name, array, "logits", logits)
    return logits, array
