"""transformers: Qwen3-VL-MoE's router. It drops no token, so cases that do are not offered."""

import importlib
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import dense, shared, top_k_router

__all__ = ["ROUTERS"]

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe")


def _choose(tokens: Tensor, kernel: Tensor, options: Any) -> Tensor:
    """`Qwen3VLMoeTextTopKRouter`, which divides the gates of a token by their sum (SA-3)."""
    experts, width = kernel.shape
    settings: Any = SimpleNamespace(num_experts_per_tok=options.choices, num_experts=experts, hidden_size=width)
    _, gates, chosen = functional_call(module.Qwen3VLMoeTextTopKRouter(settings), {"weight": kernel}, (tokens,))
    return dense(experts, chosen, gates)


ROUTERS = {"softmax_token_choice": top_k_router(_choose)}
