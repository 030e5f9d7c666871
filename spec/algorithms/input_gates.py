"""Combine weights on the inputs of the experts instead of their outputs.

| here | Llama 4 | Megatron-LM |
|---|---|---|
| `weights_on="input"` of `moe_mlp` | `routed_in * router_scores` | `moe_apply_probs_on_input` |

Both forms are equal for linear experts without biases, such as copy experts, so `weights_on` only changes the MLP experts.

Ambiguity ledger

IG-1: Do the combine weights multiply the inputs or the outputs of the experts?
    Reading: the outputs, unless `weights_on="input"`.
        By: Routers (arXiv 2401.15969), section 1.2; deepseek-ai/DeepSeek-V3, inference/model.py, MoE.forward.
    Alternative b: the inputs.
        By: huggingface/transformers, src/transformers/models/llama4/modeling_llama4.py, Llama4TextMoe.forward;
        NVIDIA/Megatron-LM, megatron/core/transformer/moe/experts.py, TEGroupedMLP.forward (moe_apply_probs_on_input, one choice).
"""

from moespec.spec.algorithm import Algorithm

__all__: list[str] = []

ALGORITHMS = (Algorithm("input_gates", "Liu et al. 2024 (arXiv 2401.15969), section 1.2; Llama 4", 1),)

PLACES = ("output", "input")
"""The values of `weights_on` in `moe_mlp`."""
