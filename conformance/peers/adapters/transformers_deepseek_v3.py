"""transformers: DeepSeek-V3's router, which is that of many models. It drops no token, so cases that do are not offered."""

import importlib
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import dense, shared, sigmoid_scores, top_k_router

__all__ = ["ROUTERS"]

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.deepseek_v3.modeling_deepseek_v3")


def _choose(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor) -> Tensor:
    """`DeepseekV3TopkRouter`.

    Which of equal scores come first is not specified (TC-1): `torch.topk` chooses.
    """
    sigmoid_scores(options)
    experts, width = kernel.shape
    settings: Any = SimpleNamespace(
        num_experts_per_tok=options.choices, num_local_experts=experts, hidden_size=width,
        routed_scaling_factor=options.scale, n_group=options.expert_groups, topk_group=options.chosen_groups,
        norm_topk_prob=options.normalize_selected,
    )  # fmt: skip
    parameters = {"weight": kernel, "e_score_correction_bias": bias}
    _, gates, chosen = functional_call(module.DeepseekV3TopkRouter(settings), parameters, (tokens,))
    return dense(experts, chosen, gates)


ROUTERS = {"sigmoid_token_choice": top_k_router(_choose)}
