"""Gated experts, experts without biases, and shared experts, with or without a gate. These experts work with any router.

| here | GLU variants (arXiv 2002.05202) | DeepSeekMoE (arXiv 2401.06066) |
|---|---|---|
| `w1`, `w3`, `w2` of `expert_mlp` | W, V, W_2 of FFN_SwiGLU, FFN_GEGLU | |
| `shared` of `moe_mlp` | | the K_s shared experts, merged into one with their total width |
| `params` of `moe_mlp` | | the routed experts |
| `gate` of `shared`, with weight sigmoid(x gate) | | (Qwen2, arXiv 2407.10671: not in the report; see GE-2) |

A routing does not depend on whether experts are gated. The experts of DeepSeek-V3, of torchtitan and of the GLU in megablocks
have no biases. In timm and Megatron-LM, biases are optional, but the shared experts of Megatron-LM have no biases.

Ambiguity ledger

GE-1: Which of two kernels, or which half of a packed kernel, computes the gate of a gated expert?
    Reading: the first kernel, `w1`, computes the gate: silu(x w1) * (x w3).
        By: deepseek-ai/DeepSeek-V3, inference/model.py, Expert.forward; pytorch/torchtitan, torchtitan/models/common/moe.py,
        GroupedExperts.forward; databricks/megablocks, megablocks/layers/glu.py, SparseGLU.forward (v1 is w3); NVIDIA/Megatron-LM,
        megatron/core/transformer/mlp.py, MLP.forward (the first half); huggingface/pytorch-image-models, timm/layers/mlp.py,
        SwiGLU and SwiGLUPacked (the first half).
    Alternative b: the second kernel, or the last half of a packed kernel, computes the gate.
        By: huggingface/pytorch-image-models, timm/layers/mlp.py, GluMlp (gate_last, its default).
GE-2: What is the weight of a shared expert's output?
    Reading: the weight is 1, regardless of the combine weights of the routed experts, unless `shared` has a `gate`.
        By: deepseek-ai/DeepSeek-V3, inference/model.py, MoE.forward;
        pytorch/torchtitan, torchtitan/models/common/moe.py, MoE.forward; NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_layer.py, MoELayer.postprocess; databricks/megablocks, megablocks/layers/mlp.py,
        SharedMLP.add_experts_sharedexpert.
    Alternative b: the weight is 1 / (K + 1). The combined output of the K chosen experts has weight K / (K + 1).
        By: databricks/megablocks, megablocks/layers/mlp.py, SharedMLP.add_experts_sharedexpert (shared_expert_weighted_sum).
    Alternative c: the weight is the sigmoid of a separate logit, x w, as in Qwen2. This is the parameter `gate` of `shared`.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/shared_experts.py, SharedExpertMLP.forward (moe_shared_expert_gate);
        huggingface/transformers, src/transformers/models/qwen2_moe/modeling_qwen2_moe.py, Qwen2MoeSparseMoeBlock.forward.
GE-3: Does `clamped_silu` clamp the gate before or after the SiLU?
    Reading: before: silu(min(x w1, 10)).
        By: huggingface/transformers, src/transformers/models/deepseek_v4/modeling_deepseek_v4.py,
        DeepseekV4Experts._apply_gate; huggingface/transformers,
        src/transformers/models/glm5_next/modeling_glm5_next.py, Glm5NextTextExperts._apply_gate.
    Alternative b: after: min(silu(x w1), 10).
        By: huggingface/transformers, src/transformers/models/step3p7/modeling_step3p7.py, Step3p7Experts._apply_gate.
GE-4: Does SiTU bound the second factor of a gated expert, too?
    Reading: yes: 25 tanh(x w3 / 25).
        By: huggingface/transformers, src/transformers/models/inkling2/modeling_inkling2.py,
        Inkling2SoftcappedSwiGLU.forward.
    Alternative b: no, the second factor is x w3.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gelu import activation as gelu_activation
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_size
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, positive_part, sigmoid
from moespec.spec.values import as_array, even

__all__: list[str] = []

ALGORITHMS = (Algorithm("gated_experts", "Shazeer 2020 (arXiv 2002.05202); Dai et al. 2024 (arXiv 2401.06066)", 2),)

AXES = {
    **{"w1": "experts width hidden", "b1": "experts hidden", "w3": "experts width hidden", "b3": "experts hidden"},
    **{"w2": "experts hidden output", "b2": "experts output"},
}
"""Axes of the parameters of `expert_mlp`; w1 and w2 are required."""

OPTIONAL = ("b1", "w3", "b3", "b2", "gate")
"""The parameters that a shared expert may lack."""

ACTIVATIONS = ("gelu", "silu", "quick_gelu", "relu2", "clamped_silu", "clamped_quick_gelu", "situ")
"""The names of the activations between the linear maps of an expert."""

LIMITS = {"clamped_silu": 10.0, "clamped_quick_gelu": 7.0}
"""The bound of both factors, from DeepSeek-V4 and gpt-oss."""

CAPS = (4.0, 25.0)
"""The bounds of the two factors of SiTU, from Kimi K3."""


def silu(x: Array) -> Array:
    """Computes the sigmoid linear unit `x / (1 + exp(-x))` (Elfwing et al. 2017, arXiv 1702.03118). Does not check `x`."""
    return x * sigmoid(x)


def quick_gelu(x: Array) -> Array:
    """Approximates the GELU by `x sigmoid(1.702 x)` (Hendrycks and Gimpel 2016, section 2). Does not check `x`."""
    return x * sigmoid(1.702 * x)


def activated(x: Array, activation: str, gelu: str) -> Array:
    """Applies the activation of `expert_mlp`. Does not check `x`."""
    if activation == "gelu":
        return gelu_activation(x, form=gelu)
    if activation == "relu2":
        return positive_part(x) ** 2
    if activation == "situ":
        return CAPS[0] * np.tanh(x / CAPS[0]) * sigmoid(x)
    limit = LIMITS.get(activation, np.inf)
    x = np.where(x.real > limit, limit, x)
    return silu(x) if activation.endswith("silu") else quick_gelu(x)


def second_factor(x: Array, activation: str) -> Array:
    """Applies the bounds of `activation` to the second factor `x` of a gated expert. Does not check `x`."""
    if activation == "situ":
        return CAPS[1] * np.tanh(x / CAPS[1])
    limit = LIMITS.get(activation, np.inf)
    x = np.where(x.real > limit, limit, np.where(x.real < -limit, -limit, x))
    return x + 1 if activation == "clamped_quick_gelu" else x


def alone(params: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Adds an experts axis of length 1 to the parameters of a shared expert, without its `gate`."""
    check_part_names("shared", params, (*AXES, "gate"), optional=OPTIONAL)
    return {name: even(name, value)[None] for name, value in params.items() if name != "gate"}


def shared_weight(tokens: Array, gate: ArrayLike) -> Array:
    """Computes the weight (tokens, 1) of a gated shared expert, `sigmoid(tokens gate)`, from its `gate` (width,)."""
    gate = as_array("gate", gate, "width")
    check_size("gate", gate, 0, tokens.shape[1], "the width of tokens")
    return sigmoid(tokens @ gate)[:, None]


def expert_parameters(
    params: Mapping[str, ArrayLike], *, width: int, experts: int | None = None, plain: bool = False
) -> dict[str, Array]:
    """Checks and returns the parameters of expert MLPs for inputs of size `width`. If `experts` is None, any number of experts is valid.

    plain: whether to require exactly two linear maps, both with a bias.
    """
    check_parameter_names(params, plain=plain)
    weights = {name: as_array(name, params[name], axes) for name, axes in AXES.items() if name in params}
    for name, array in weights.items():
        reason = "the experts of w1" if experts is None else "the experts of inputs"
        check_size(name, array, 0, experts or len(weights["w1"]), reason)
    check_expert_widths(weights, width)
    return weights


def check_parameter_names(params: Mapping[str, Any], *, plain: bool = False) -> None:
    """Raises `ConfigError` for missing or unknown parameters of expert MLPs. plain: as in `expert_parameters`."""
    known = ("w1", "b1", "w2", "b2") if plain else tuple(AXES)
    needed = known if plain else ("w1", "w2", *(["w3"] if "b3" in params else []))
    check_part_names("params", params, known, optional=set(known) - set(needed))


def check_part_names(
    name: str, parts: Mapping[str, Any], known: Collection[str], *, optional: Collection[str] = ()
) -> None:
    """Raises `ConfigError` unless the arrays `parts` of the argument `name` have the names `known`; those in `optional` may be missing."""
    if not isinstance(parts, Mapping):
        raise ConfigError(f"{name}: expected a dict of arrays, got {parts!r}")
    if missing := [each for each in known if each not in parts and each not in optional]:
        raise ConfigError(f"{name}: {missing[0]} is missing, got {sorted(parts)}")
    if unknown := sorted(set(parts) - set(known)):
        raise ConfigError(f"{name}: {unknown[0]} is not one of {', '.join(known)}")


def check_expert_widths(weights: Mapping[str, Any], width: int) -> None:
    """Raises `ShapeError` unless the parameters of expert MLPs agree in width with each other and with inputs of size `width`."""
    for name in weights:
        if name in ("w1", "w3"):
            check_size(name, weights[name], 1, width, "the width of inputs")
        if name in ("b1", "b3", "w2"):
            check_size(name, weights[name], 1, weights["w1"].shape[2], "the hidden width of w1")
        if name == "w3":
            check_size(name, weights[name], 2, weights["w1"].shape[2], "the hidden width of w1")
        if name == "b2":
            check_size(name, weights[name], 1, weights["w2"].shape[2], "the output width of w2")
