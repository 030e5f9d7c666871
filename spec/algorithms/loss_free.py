"""Balance without a loss: routers add a bias to the scores of each expert. Each training step lowers the bias of experts with a high load.

| here | Loss-Free Balancing (arXiv 2408.15664) | DeepSeek-V3 (arXiv 2412.19437) |
|---|---|---|
| `scores` (T, E) | s | s, eq. (15) |
| `bias` (E,) | b | b, eq. (16) |
| `load` (E,) | c | expert load |
| mean load minus `load` | e | |
| `rate` | u, 0.001 | gamma |

Ambiguity ledger

LF-1: Is the update recentred to preserve the mean of the biases?
    Reading: no, the update is not recentred.
        By: the paper, Algorithm 1; NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py,
        get_updated_expert_bias; AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, calculate_load_balance_updates.
    Alternative b: yes, the mean over experts is subtracted (`recentre`). Tokens that choose among all experts make the same choices.
        By: pytorch/torchtitan, torchtitan/components/optimizer/optimizer.py, _update_expert_bias.
LF-2: Does the load of an expert include choices that are dropped because the expert is full?
    Reading: yes, choices are counted before the capacity limit drops any of them.
        By: AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.permute; pytorch/torchtitan,
        torchtitan/models/common/moe.py, MoE.forward (which drops none).
    Alternative b: no, only kept choices are counted.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.routing.
LF-3: Over which tokens is the load summed before the bias is updated?
    Reading: the load is summed over all tokens of a step. The loads of all micro-batches and devices are added.
        By: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2; NVIDIA/Megatron-LM,
        megatron/core/distributed/finalize_model_grads.py, _update_router_expert_bias; pytorch/torchtitan,
        torchtitan/components/optimizer/optimizer.py, _update_expert_bias.
    Alternative b: the load is summed over one chunk of a sequence. The updates of all chunks are averaged.
        By: AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.sparse_matmul.

Often done differently

LF-4: How far does an update move a bias?
    Reading: the bias moves by the rate, up or down, regardless of the size of the load violation.
        By: the paper, Algorithm 1; NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py,
        get_updated_expert_bias; AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, calculate_load_balance_updates;
        pytorch/torchtitan, torchtitan/components/optimizer/optimizer.py, _update_expert_bias.
    Alternative b: the bias moves in proportion to the load violation.
        By: the paper, section 4.3 (no better), and appendix C.2 (with softmax scores).
LF-5: Is the bias part of the gate?
    Reading: no, the gate is the score without the bias.
        By: the paper, eq. (3); DeepSeek-V3 (arXiv 2412.19437), eq. (16); NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function; AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.deepseek_routing; pytorch/torchtitan, torchtitan/models/common/moe.py,
        TokenChoiceTopKRouter.forward.
    Alternative b: yes, the gate is the score with the bias.
LF-6: Is the bias added to the scores or multiplied by them?
    Reading: the bias is added to the scores.
        By: the paper, eq. (3).
    Alternative b: the scores are multiplied by the bias.
        By: the paper, eq. (5) (slightly worse).
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import (
    check_choices,
    check_mask,
    check_non_negative,
    check_option,
    check_same_shape,
    check_size,
)
from moespec.spec.numerics import Array, Shared, stable_order, stop_gradient
from moespec.spec.routing import Summed
from moespec.spec.values import as_array

__all__ = ["balance_bias", "biased_scores", "expert_load"]

PAPER = "Wang et al. 2024 (arXiv 2408.15664)"
ALGORITHMS = (
    Algorithm("biased_scores", f"{PAPER}, eq. (3)", 2, ("biased_scores",)),
    Algorithm("balance_bias", f"{PAPER}, Algorithm 1", 1, ("balance_bias", "expert_load")),
)


def biased_scores(scores: ArrayLike, bias: Shared) -> Array:
    """Returns the scores by which tokens choose experts, `s[t, e] + b[e]`. The scores carry no gradient.

    Args:
        scores: s, (tokens, experts).
        bias: b, (experts,).

    Returns:
        (tokens, experts), for `token_choice(..., combine_scores=scores)`.

    Source: Loss-Free Balancing, eq. (3).

    >>> biased_scores([[0.5, 0.25]], [-0.5, 0.25]).tolist()
    [[0.0, 0.5]]
    """
    scores, bias = as_array("scores", scores, "tokens experts"), as_array("bias", bias, "experts")
    check_size("bias", bias, 0, scores.shape[1], "the experts of scores")
    return stop_gradient(scores + bias)


def expert_load(scores: ArrayLike, keep: ArrayLike | None = None, *, choices: int, scope: str = "batch") -> Summed:
    """Counts the tokens that choose each expert, before the capacity limit drops any choice:

        load[e] = #{t : e is one of the K best of scores[t, :]}

    The caller sums the loads over groups, micro-batches and devices.

    Args:
        scores: (tokens, experts), the selection scores, as for `token_choice`.
        keep: (tokens, choices) booleans: whether token t makes its i-th choice. By default, tokens make all choices.
        choices: K, from 1 to experts.
        scope: "batch" for the sum over all groups that a device computes together, "global" for the sum over all devices of
            a mesh. In the specification, both scopes give the same result, because there is only one group.

    Returns:
        (experts,) whole numbers as floats.

    Source: Loss-Free Balancing, Algorithm 1.

    >>> expert_load([[0.5, 0.25, 0.0], [0.5, 0.0, 0.25]], choices=2).tolist()
    [2.0, 1.0, 1.0]
    """
    scores = as_array("scores", scores, "tokens experts")
    check_option("scope", scope, ("batch", "global"))
    experts = scores.shape[1]
    chosen = stable_order(scores)[:, : check_choices(choices, experts)]
    if keep is not None:
        check_mask("keep", keep, chosen.shape, "choice")
        chosen = chosen[np.asarray(keep)]
    return np.bincount(chosen.reshape(-1), minlength=experts).astype(np.float64)


def balance_bias(bias: Shared, load: Shared, *, rate: float, recentre: bool = False) -> Array:
    """Returns the bias after a step. The bias of an expert rises if the expert's load is below the mean load, and falls if it is above:

        b[e] + rate sign(mean of load - load[e])

    Args:
        bias: b, (experts,).
        load: (experts,), the load of each expert from all tokens of the step, at least 0.
        rate: the change of a bias in one step, at least 0.
        recentre: whether to subtract the mean of the changes from each change.

    Returns:
        (experts,).

    Source: Loss-Free Balancing, Algorithm 1. `recentre`: pytorch/torchtitan, torchtitan/components/optimizer/optimizer.py,
    _update_expert_bias.

    >>> balance_bias([0.0, 0.0, 0.5, 0.0], [5.0, 1.0, 2.0, 0.0], rate=0.25).tolist()
    [-0.25, 0.25, 0.5, 0.25]
    >>> balance_bias([0.0, 0.0, 0.5, 0.0], [5.0, 1.0, 2.0, 0.0], rate=0.25, recentre=True).tolist()
    [-0.3125, 0.1875, 0.4375, 0.1875]
    """
    bias, load = as_array("bias", bias, "experts"), as_array("load", load, "experts")
    check_same_shape("load", load, "bias", bias)
    excess = len(load) * load.real - np.sum(load.real)  # E (load - mean load), exact if loads are integers
    change = check_non_negative("rate", rate) * np.where(excess < 0, 1.0, np.where(excess > 0, -1.0, 0.0))
    return bias + (change - np.mean(change) if recentre else change)
