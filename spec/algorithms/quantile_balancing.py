"""Quantile balancing: after each step, the biases are set to values that would have balanced the load of that step.

| here | Su 2026 (kexue.fm/archives/11619) |
|---|---|
| `scores` (T, E) | s |
| cutoff of a token | alpha |
| `bias` (E,) | -beta |
| `choices` | k |

Consider the 0-1 matrix x that maximises `sum_te x[t, e] s[t, e]` with K experts per token and K T / E tokens per expert.
The dual variables are alpha for tokens and beta for experts. Coordinate descent sets alpha[t] to a quantile of `s[t, e] - beta[e]` over
experts, and beta[e] to a quantile of `s[t, e] - alpha[t]` over tokens. BASE layers solve this problem, with K = 1, in each group.

Ambiguity ledger

QB-1: Over which tokens is the quantile taken?
    Reading: the quantile is taken over all tokens of a step. The counts of all groups are summed.
    Alternative b: the quantile is taken over the tokens of one micro-batch on one device. The quantiles are averaged.
        By: NVIDIA/Megatron-LM, megatron/core/distributed/finalize_model_grads.py, _update_router_qb_beta;
        marin-community/marin, experiments/grug/moe/model.py (MoEMLP).
QB-2: Which required bias of an expert is used as the quantile?
    Reading: the quantile is the required bias of rank K T / E, interpolated within the histogram bin that contains this rank.
    Alternative b: the quantile is the required bias of rank K T / E + 1, computed without bins.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, qb_dual_update.
    Alternative c: the quantile is the required bias of rank K T / E, computed without bins.
        By: marin-community/marin, experiments/grug/moe/model.py (MoEMLP).
QB-3: To which scores is the bias added?
    Reading: the bias is added to the sigmoid of the logits, or to other scores from 0 to 1.
    Alternative b: the bias is added to the logits.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.quantile_balancing;
        marin-community/marin, experiments/grug/moe/model.py (MoEMLP).
QB-4: Is the bias recentred?
    Reading: yes, the mean of the bias over the experts is 0.
        By: NVIDIA/Megatron-LM, megatron/core/distributed/finalize_model_grads.py, _update_router_qb_beta.
    Alternative b: no, the bias is not recentred.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_rivals, check_size
from moespec.spec.numerics import Array, Shared, stable_order, stop_gradient
from moespec.spec.routing import Summed
from moespec.spec.values import as_array

__all__ = ["quantile_bias", "required_biases"]

ALGORITHMS = (
    Algorithm("quantile_balancing", "Su 2026 (kexue.fm/archives/11619)", 2, ("required_biases", "quantile_bias")),
)


def required_biases(scores: ArrayLike, bias: Shared, *, choices: int, bins: int) -> Summed:
    """Returns one histogram per expert. Each histogram counts the biases r that the tokens require to choose the expert:

        r[t, e] = (the (K + 1)-th largest of s[t, :] + b) - s[t, e]

    Bins of equal width cover min(b) - 1 to max(b) + 1. If scores lie between 0 and 1, all r are in this range. Values
    outside this range are counted in the first or last bin. The caller sums counts over groups, micro-batches and devices.

    Args:
        scores: s, (tokens, experts).
        bias: b, (experts,), the current biases.
        choices: K, from 1 to experts - 1.
        bins: number of bins, at least 1.

    Returns:
        (experts, bins) counts, stored as floats. A backend returns their sum over its groups.

    Source: Kimi K3's technical report, section 2.3.3 and appendix D;
    pytorch/torchtitan@00a4c147699f25d1dcb29192569c2844a9c66aa2, torchtitan/models/common/moe.py
    (QuantileBalancer.observe).

    >>> required_biases([[0.75, 0.25, 0.5], [1.0, 0.5, 0.25]], [0.0, 0.0, 0.0], choices=1, bins=5).tolist()
    [[0.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0]]
    """
    scores, bias = stop_gradient(as_array("scores", scores, "tokens experts")), as_array("bias", bias, "experts").real
    experts = scores.shape[1]
    check_size("bias", bias, 0, experts, "the experts of scores")
    choices, bins = check_rivals(choices, experts), check_at_least("bins", bins, 1)
    cutoff = np.take_along_axis(scores + bias, stable_order(scores + bias)[:, choices : choices + 1], 1)
    low, width = _ends(bias)
    position = (cutoff - scores - low) * (bins / width)
    position = np.where(position < 0, 0, np.where(position < bins, position, bins - 1)).astype(int)
    return np.stack([np.bincount(column, minlength=bins) for column in position.T]).astype(np.float64)


def _ends(bias: Array) -> tuple[Array, Array]:
    """Returns the lower end of the first bin and the total width of all bins."""
    first, *_, last = bias[stable_order(bias)]
    return last - 1, first - last + 2


def quantile_bias(bias: Shared, counts: Shared, *, choices: int) -> Array:
    """Returns the bias after a step of T tokens. With this bias, K T / E of these tokens would have chosen each expert:

        q[e] = the required bias of expert e with rank K T / E, interpolated within the bin;    b'[e] = q[e] - mean of q

    If all counts are 0, the bias is 0.

    Args:
        bias: b, (experts,), the bias during the step.
        counts: (experts, bins), at least 0, the sum of `required_biases` over all groups of the step.
        choices: K, from 1 to experts - 1.

    Returns:
        (experts,), with mean 0.

    Source: Kimi K3's technical report, section 2.3.3 and appendix D;
    pytorch/torchtitan@00a4c147699f25d1dcb29192569c2844a9c66aa2, torchtitan/models/common/moe.py
    (QuantileBalancer.estimate_expert_bias).

    >>> counts = [[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]
    >>> quantile_bias([0.0, 0.0], counts, choices=1).tolist()
    [-0.25, 0.25]
    """
    bias, counts = as_array("bias", bias, "experts"), as_array("counts", counts, "experts bins")
    check_size("counts", counts, 0, len(bias), "the experts of bias")
    experts, bins = counts.shape
    rank = check_rivals(choices, experts) * counts.sum(axis=1)  # the rank times E, to avoid fractions
    below = experts * np.cumsum(counts, axis=1).real < rank.real[:, None]
    at = below.sum(axis=1)
    here = np.sum(np.where(np.arange(bins) == at[:, None], counts, 0.0), axis=1)
    before = np.sum(np.where(below, counts, 0.0), axis=1)
    position = at + (rank - experts * before) / np.where(here.real > 0, experts * here, 1.0)
    return (position - np.mean(position)) * (_ends(bias)[1] / bins)
