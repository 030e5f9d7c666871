"""transformers: Qwen3-VL-MoE's router. The router drops no token, so the adapter rejects cases with drops."""

import importlib
from typing import Any

from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import shared, top_k_router, transformers_gates

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe")


def _choose(tokens: Tensor, kernel: Tensor, options: Any) -> Tensor:
    """`Qwen3VLMoeTextTopKRouter`, which divides the gates of a token by their sum (SA-3)."""
    return transformers_gates(module.Qwen3VLMoeTextTopKRouter, tokens, kernel, options.choices)


ROUTERS = {"softmax_token_choice": top_k_router(_choose)}
