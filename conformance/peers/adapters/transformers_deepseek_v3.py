"""transformers: the router of DeepSeek-V3 and of many other models. The router drops no token, so the adapter rejects cases with drops."""

import importlib
from typing import Any

from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import SIGMOID, only, shared, top_k_router, transformers_gates

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.deepseek_v3.modeling_deepseek_v3")


def _choose(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor) -> Tensor:
    """`DeepseekV3TopkRouter`."""
    only(options, **SIGMOID)
    return transformers_gates(
        module.DeepseekV3TopkRouter, tokens, kernel, options.choices, parameters={"e_score_correction_bias": bias},
        routed_scaling_factor=options.scale, n_group=options.expert_groups, topk_group=options.chosen_groups,
        norm_topk_prob=options.normalize_selected,
    )  # fmt: skip


ROUTERS = {"sigmoid_token_choice": top_k_router(_choose)}
