"""The balance loss: the sum over experts of the fraction of tokens that choose the expert times the expert's mean score.

| here | Switch (arXiv 2101.03961) |
|---|---|
| fraction, mean score (E,) | f, P |

Ambiguity ledger

AL-3: How is the balance loss scaled?
    Reading: the loss is E times the sum over experts, so uniform scores give a loss of 1.
        By: Switch (arXiv 2101.03961), eq. (4); google-research/vmoe, vmoe/nn/routing.py,
        NoisyTopExpertsPerItemRouter._gshard_auxiliary_loss; tensorflow/mesh, mesh_tensorflow/transformer/moe.py,
        _switch_gating and _top_2_gating; tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits;
        microsoft/Tutel, tutel/impls/losses.py, gshard_loss.
    Alternative b: the loss is 1 / E times the sum over experts.
        By: GShard (arXiv 2006.16668), Algorithm 1, line 13.
    Alternative c: the loss is E times the sum over experts, divided by K or by the number of layers.
        By: databricks/megablocks, megablocks/layers/moe.py, batched_load_balancing_loss; deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, topkgating; NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py,
        switch_load_balancing_loss_func.
AL-5: From which scores is the balance loss computed?
    Reading: the loss is computed from the noisy gates, before the capacity limit drops any choice.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics;
        tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _switch_gating.
    Alternative b: the loss is computed from the clean gates, without noise.
    Alternative c: the loss is computed from the gates that remain after the capacity limit has dropped choices.
        By: lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
AL-8: Which choices of a token does the balance loss count?
    Reading: the loss counts only the first choice of each token, so the smallest values of the loss are near 1.
        By: GShard (arXiv 2006.16668), Algorithm 1, lines 11 and 13; google-research/vmoe, vmoe/nn/routing.py,
        NoisyTopExpertsPerItemRouter._gshard_auxiliary_loss; facebookresearch/fairseq, fairseq/modules/moe/top2gate.py,
        top2gating; microsoft/Tutel, tutel/impls/losses.py, gshard_loss; google/praxis, praxis/gshard_utils.py,
        top2_gating_on_logits; tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, _top_2_gating (moe_use_second_place_loss=False); deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, top2gating; laekov/fastmoe, fmoe/gates/gshard_gate.py, GShardGate.forward;
        lucidrains/mixture-of-experts, mixture_of_experts/mixture_of_experts.py, Top2Gating; lucidrains/st-moe-pytorch,
        st_moe_pytorch/st_moe_pytorch.py, TopNGating.
    Alternative b: the loss counts all K choices (`balance_counts="all"`). The smallest values are near K unless the loss is divided by K.
        By: google/flaxformer, flaxformer/architectures/moe/routing.py, _load_balancing_loss; AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.load_balance_loss; huggingface/transformers,
        src/transformers/models/mixtral/modeling_mixtral.py, load_balancing_loss_func; databricks/megablocks,
        megablocks/layers/moe.py, batched_load_balancing_loss (divided by K); stanford-crfm/levanter,
        src/levanter/models/mixtral.py, MixtralSparseMoeBlock.__call__ (divided by K); deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, topkgating (divided by K); NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, switch_load_balancing_loss_func (divided by K).
AL-9: Over which tokens does the balance loss compute the fraction of choices per expert?
    Reading: the fraction is computed over the tokens of one routing group. The losses of all groups are averaged.
        By: DeepSeek-V3 (arXiv 2412.19437), eqs. (17)-(20) (of a sequence); google-research/vmoe, vmoe/nn/routing.py,
        NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics; google/flaxformer,
        flaxformer/architectures/moe/routing.py, _load_balancing_loss; AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.load_balance_loss (of a sequence); NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/router.py, TopKRouter._apply_seq_aux_loss (of a sequence).
    Alternative b: the fraction is computed over all groups that a device computes together (`balance_scope="batch"`).
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter._apply_aux_loss;
        databricks/megablocks, megablocks/layers/moe.py, batched_load_balancing_loss.
    Alternative c: the fraction is computed over the tokens of all devices (`balance_scope="global"`).
        By: Qiu et al. 2025 (arXiv 2501.11873); NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py,
        TopKRouter._apply_global_aux_loss (averaged over the micro-batches so far).
    Alternative d: the fraction is computed over the tokens of all layers together.
        By: huggingface/transformers, src/transformers/models/mixtral/modeling_mixtral.py, load_balancing_loss_func.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_size
from moespec.spec.numerics import Array, Shared, stable_order, stop_gradient
from moespec.spec.values import as_array

__all__ = ["balance_loss"]

ALGORITHMS = (Algorithm("balance_loss", "Fedus et al. 2021 (arXiv 2101.03961), eqs. (4)-(6)", 2, ("balance_loss",)),)


def balance_loss(scores: ArrayLike, load: Shared | None = None, *, choices: int = 1) -> Array:
    """Computes `E sum_e f[e] P[e]`. f[e] is the fraction of tokens that choose expert e. P[e] is the mean score of expert e:

        f[e] = 1 / T #{t : e is among the `choices` best of A[t, :]},    P[e] = 1 / T sum_t A[t, e]

    If `load` is passed, `f[e] = K load[e] / sum load` for K choices. P is still the mean over the tokens of the group. With
    groups of equal size, the mean of the losses of all groups and devices then equals the loss over all tokens together.

    Only P carries a gradient. Uniform scores give a loss of K for K choices. With `choices=1`, the loss is E if every token has
    a score of 1 for the same expert. With `choices=1`, training can lower the loss to 3 / 4 + 1 / (4 E). In that case,
    (E + 1) / (2 E) of the tokens barely prefer expert 0. The other tokens choose experts 1 to E - 1 equally often, with scores of 1.

    Args:
        scores: A, (tokens, experts), the softmax of the (noisy) logits.
        load: (experts,), at least 0 and not all 0: how many tokens in the scope of the loss choose each expert, as counted by
            `expert_load` with the same `choices`; None to count the tokens of the group.
        choices: K, the number of choices per token that f counts, from 1 to experts.

    Returns:
        A scalar, at most E.

    Source: Switch, eqs. (4)-(6). `choices`: google/flaxformer, flaxformer/architectures/moe/routing.py,
    _load_balancing_loss. `load`: Qiu et al. 2025 (arXiv 2501.11873).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> round(float(balance_loss(softmax_affinity(LOGITS))), 12)
    1.170888019345
    >>> round(float(balance_loss(softmax_affinity(LOGITS), choices=2)), 12)
    2.34177603869
    >>> round(float(balance_loss(softmax_affinity(LOGITS), [2.0, 8.0, 2.0])), 12)  # of two groups
    0.928392488252
    >>> round(float(balance_loss(softmax_affinity(LOGITS + NOISE / 3))), 12)
    1.37337995008
    >>> barely = np.full((65, 64), 1 / 64) + 1e-9 * np.eye(64)[[0] * 65]
    >>> round(float(balance_loss(np.vstack([barely, np.eye(64)[1:]]))), 6)
    0.753906
    """
    scores = as_array("scores", scores, "tokens experts")
    tokens, experts = scores.shape
    check_choices(choices, experts)
    if load is None:
        fraction = np.bincount(stable_order(scores)[:, :choices].ravel(), minlength=experts) / tokens
    else:
        load = stop_gradient(as_array("load", load, "experts"))
        check_size("load", load, 0, experts, "the experts of scores")
        fraction = choices * load / np.sum(load)
    return experts * np.sum(fraction * np.mean(scores, axis=0))
