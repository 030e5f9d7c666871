"""Auxiliary losses that ask for balance. All are unweighted numbers for one routing group.

Ambiguity ledger

AL-1: Which standard deviation is in the coefficient of variation?
    Reading: that of the population (divided by E).
    Alternatives: unbiased, divided by E - 1 (tutel).
AL-2: Does the threshold of the load loss include the expert itself?
    Reading: yes, the K-th largest noisy logit of the row.
    Alternatives: the K-th largest of the other experts (Shazeer et al. 2017).
AL-3: How is the balance loss scaled?
    Reading: E times the sum, which is 1 for uniform scores.
    Alternatives: the mean over experts (the text of GShard); divided by K or by the number of layers.
AL-4: Is the load summed or averaged over tokens?
    Reading: summed; the coefficient of variation is the same.
    Alternatives: averaged.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_choices, check_positive, check_same_shape
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, logsumexp, normal_cdf, stable_order, variance

__all__ = ["balance_loss", "importance_loss", "load_loss", "z_loss"]


def importance_loss(scores: ArrayLike) -> Array:
    """Squared coefficient of variation of the importance `I[e] = sum_t A[t, e]`: population variance / mean^2.

    Args:
        scores: (tokens, experts), the softmax of the logits without noise.

    Returns:
        A number from 0 (balanced) to E - 1.

    Source: V-MoE, appendix; Routers, appendix A. Section 10.1.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> float(importance_loss(softmax_affinity(LOGITS)).round(12))
    0.185471562411
    """
    scores = as_array("scores", scores, "tokens experts")
    return _squared_variation("scores", scores.sum(axis=0))


def load_loss(logits: ArrayLike, noisy_logits: ArrayLike, *, choices: int, noise_std: float) -> Array:
    """Squared coefficient of variation of the load, the expected number of tokens that choose an expert:

        load[e] = sum_t (1 - Phi((threshold[t] - L[t, e]) / noise_std))

    where `threshold[t]` is the K-th largest noisy logit of the token and Phi the distribution function of the standard
    normal: each summand is the probability that the expert passes if its noise is drawn again.

    Args:
        logits: (tokens, experts), without noise.
        noisy_logits: (tokens, experts), as used in the selection.
        choices: K, from 1 to experts.
        noise_std: standard deviation of the noise, greater than 0.

    Source: V-MoE, appendix; Routers, eqs. (12)-(15). Section 10.2.

    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> float(load_loss(LOGITS, LOGITS + NOISE / 3, choices=1, noise_std=1 / 3).round(12))
    0.204617702027
    """
    logits = as_array("logits", logits, "tokens experts")
    noisy_logits = as_array("noisy_logits", noisy_logits, "tokens experts")
    check_same_shape("noisy_logits", noisy_logits, "logits", logits)
    choices = check_choices(choices, logits.shape[1])
    noise_std = check_positive("noise_std", noise_std)
    last = stable_order(noisy_logits)[:, choices - 1 : choices]
    threshold = np.take_along_axis(noisy_logits, last, axis=1)
    passes = 1.0 - normal_cdf((threshold - logits) / noise_std)
    return _squared_variation("logits", passes.sum(axis=0))


def balance_loss(scores: ArrayLike) -> Array:
    """`E sum_e f[e] P[e]`: `f[e]` the share of tokens whose best expert is e, `P[e] = mean_t A[t, e]`.

    Only P carries a gradient. The value is 1 for uniform scores and E if one expert takes everything.

    Args:
        scores: (tokens, experts), the softmax of the (noisy) logits.

    Source: Switch (arXiv 2101.03961), eqs. (4)-(6). Section 10.5.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> float(balance_loss(softmax_affinity(LOGITS)).round(12))
    1.170888019345
    """
    scores = as_array("scores", scores, "tokens experts")
    tokens, experts = scores.shape
    share = np.bincount(stable_order(scores)[:, 0], minlength=experts) / tokens
    return experts * np.sum(share * np.mean(scores, axis=0))


def z_loss(logits: ArrayLike) -> Array:
    """`mean_t logsumexp_e(L[t, e])^2`, which keeps logits small.

    Args:
        logits: (tokens, experts).

    Source: ST-MoE (arXiv 2202.08906), eq. (5). Section 10.6.

    >>> from moespec.spec.examples import LOGITS
    >>> float(z_loss(LOGITS).round(12))
    4.534961753715
    """
    totals = logsumexp(as_array("logits", logits, "tokens experts"), axis=1)
    return np.mean(totals * totals)


def _squared_variation(name: str, values: Array) -> Array:
    """Variance over squared mean: no square root, so the derivative at equal values is 0 and not NaN."""
    mean = np.mean(values)
    if mean.real == 0:
        raise ContractError(f"{name}: the coefficient of variation is undefined, every expert has a total of 0")
    return variance(values) / (mean * mean)
