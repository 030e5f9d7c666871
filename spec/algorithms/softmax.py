"""The softmax affinity and the gating noise of V-MoE. Sparse-MLP uses the same affinity and noise.

Sparse-MLP (arXiv 2109.02008), eq. (2), writes TopK(softmax(W x + e)) with e ~ N(0, 1 / N^2) and N experts. Here, 1 / N^2 is
the variance, so the standard deviation is 1 / N, as in V-MoE. The gates of the K chosen experts are not divided by their sum.

| here | Routers (arXiv 2401.15969) | V-MoE (arXiv 2106.05974) |
|---|---|---|
| `tokens` (T, D) | X | x |
| `kernel` (D, E) | W | W |
| `logits` (T, E) | XW | Wx |
| `noise` (T, E), standard normal | epsilon | epsilon / sigma |
| `multiplier / E` | sigma | sigma = 1 / E |
| `softmax_affinity(logits)` (T, E) | A | g(x) |

Ambiguity ledger

SA-1: Which scores are noisy in training?
    Reading: the scores that select experts and weight outputs are noisy. The importance loss uses the clean softmax.
        By: google-research/vmoe, vmoe/nn/routing.py,
        NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics.
    Alternative b: only the scores that select experts are noisy. The clean softmax weights the outputs.
    Alternative c: noise is added to the softmax probabilities.
SA-3: Are the K selected weights of a token divided by their sum?
    Reading: no, a combine weight equals the softmax probability.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_einsum_dispatcher; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, _switch_gating; google/flaxformer, flaxformer/architectures/moe/routing.py,
        TokensChooseMaskedRouter; pytorch/torchtitan, torchtitan/models/common/moe.py, TokenChoiceTopKRouter.forward
        (route_norm=False); huggingface/transformers, src/transformers/models/llama4/modeling_llama4.py, Llama4Router.
    Alternative b: yes, before (GShard) or after (Sparse Upcycling) choices are dropped at the capacity limit.
        By: GShard (arXiv 2006.16668), Algorithm 1; microsoft/Tutel, tutel/impls/fast_dispatch.py, extract_critical
        (normalize_gate=True); deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, top2gating and topkgating;
        AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.get_topk (the softmax of the chosen logits);
        databricks/megablocks, megablocks/layers/router.py, LearnedRouter.forward (moe_normalize_expert_weights=1);
        huggingface/transformers, src/transformers/models/mixtral/modeling_mixtral.py, MixtralTopKRouter;
        stanford-crfm/levanter, src/levanter/models/mixtral.py, MixtralSparseMoeBlock._route; laekov/fastmoe,
        fmoe/gates/naive_gate.py, NaiveGate.forward (the softmax of the chosen logits); google/praxis,
        praxis/gshard_utils.py, top2_gating_on_logits.
SA-4: From which distribution is the initial kernel of a router drawn?
    Reading: LeCun normal (truncated, variance 1 / D). Switch uses a tenth of this variance, and noisy top-k starts with zeros.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter (flax.linen.Dense).
    Alternative b: another distribution, such as a normal distribution with a fixed standard deviation.
        By: google/flaxformer, flaxformer/architectures/moe/routing.py, RouterWeights (a normal with standard deviation
        0.02).
SA-5: Are the router logits computed with a bias?
    Reading: no, the logits have no bias.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics;
        tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating; microsoft/Tutel, tutel/gates/top.py,
        LinearTopKGate; databricks/megablocks, megablocks/layers/router.py, LearnedRouter; deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, TopKGate; lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating;
        huggingface/transformers, src/transformers/models/mixtral/modeling_mixtral.py, MixtralTopKRouter;
        huggingface/transformers, src/transformers/models/llama4/modeling_llama4.py, Llama4Router.
    Alternative b: yes, a bias is added to the logits (`bias=True`).
        By: google/flaxformer, flaxformer/architectures/moe/routing.py, RouterWeights (use_bias=True, the default);
        laekov/fastmoe, fmoe/gates/naive_gate.py, NaiveGate (gate_bias=True, the default); huggingface/transformers,
        src/transformers/models/nllb_moe/modeling_nllb_moe.py, NllbMoeTop2Router (router_bias=True);
        stanford-crfm/levanter, src/levanter/models/mixtral.py, MixtralSparseMoeBlock.init (use_bias=True).

Often done differently

SA-2: Is 1 / E the standard deviation or the variance of the noise?
    Reading: 1 / E is the standard deviation of the noise.
        By: V-MoE (arXiv 2106.05974), where the noise is normal with variance 1 / E^2;
        google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics.
    Alternative b: 1 / E is the variance of the noise.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_non_negative, check_same_shape, check_size
from moespec.spec.numerics import Array, Shared, softmax
from moespec.spec.values import as_array

__all__ = ["add_gating_noise", "router_logits", "softmax_affinity"]

ALGORITHMS = (
    Algorithm(
        "softmax_affinity", "Liu et al. 2024 (arXiv 2401.15969), eq. (1)", 2, ("router_logits", "softmax_affinity")
    ),
    Algorithm("gating_noise", "Riquelme et al. 2021 (arXiv 2106.05974)", 1, ("add_gating_noise",)),
)


def router_logits(tokens: ArrayLike, kernel: Shared, bias: Shared | None = None) -> Array:
    """Computes the linear logits `L = X W`, or `X W + b` with a bias.

    Args:
        tokens: X, (tokens, width).
        kernel: W, (width, experts).
        bias: b, (experts,), or None.

    Returns:
        (tokens, experts).

    Source: Routers, eq. (1). `bias`: google/flaxformer, flaxformer/architectures/moe/routing.py, RouterWeights.

    >>> router_logits([[1.0, 2.0]], [[1.0, 0.0, -1.0], [0.0, 1.0, 1.0]]).tolist()
    [[1.0, 2.0, 1.0]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    kernel = as_array("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[1], "the width of tokens")
    logits: Array = np.einsum("td,de->te", tokens, kernel)
    if bias is None:
        return logits
    bias = as_array("bias", bias, "experts")
    check_size("bias", bias, 0, kernel.shape[1], "the experts of kernel")
    return logits + bias


def add_gating_noise(logits: ArrayLike, noise: ArrayLike | None, *, multiplier: float = 1.0) -> Array:
    """Returns the noisy logits `L + multiplier / E * noise`. With `noise=None` (evaluation), the logits are returned unchanged.

    Args:
        logits: (tokens, experts).
        noise: (tokens, experts), standard normal, or None.
        multiplier: the standard deviation of the noise times the number of experts, at least 0.

    Returns:
        (tokens, experts).

    Source: V-MoE (arXiv 2106.05974); google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter.

    >>> add_gating_noise([[1.0, 0.0]], [[0.5, -1.0]]).tolist()
    [[1.25, -0.5]]
    """
    logits = as_array("logits", logits, "tokens experts")
    check_non_negative("multiplier", multiplier)
    if noise is None:
        return logits
    noise = as_array("noise", noise, "tokens experts")
    check_same_shape("noise", noise, "logits", logits)
    return logits + multiplier / logits.shape[1] * noise


def softmax_affinity(logits: ArrayLike) -> Array:
    """Computes the softmax of each token's logits over the experts:

        A[t, e] = exp(L[t, e]) / sum_e' exp(L[t, e'])

    A minimises `-<A, L> + sum_te A[t, e] log A[t, e]` over matrices whose rows sum to 1.

    Args:
        logits: L, (tokens, experts).

    Returns:
        (tokens, experts). Entries are at least 0, and small entries underflow to 0. Rows sum to 1.

    Source: Routers, eqs. (1), (6), (7).

    >>> from moespec.spec.examples import LOGITS
    >>> for row in softmax_affinity(LOGITS).round(10).tolist():
    ...     print(row)
    [0.6652409558, 0.2447284711, 0.0900305732]
    [0.7361247243, 0.1642516276, 0.0996236481]
    [0.3264958358, 0.4192289516, 0.2542752126]
    [0.3314989604, 0.1219516523, 0.5465493873]
    [0.8437947345, 0.0420100661, 0.1141951994]
    [0.2653879288, 0.7213991843, 0.013212887]
    """
    return softmax(as_array("logits", logits, "tokens experts"))
