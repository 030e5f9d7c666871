"""transformers: the router of dots3's vision encoder. It drops no token, so cases that do are not offered."""

import importlib
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import dense, shared, sigmoid_scores, top_k_router

__all__ = ["ROUTERS"]

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.dots3_note.modeling_dots3_note")


def _choose(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor) -> Tensor:
    """`Dots3NoteVisionTopKRouter`.

    Which of equal scores come first is not specified (TC-1): `torch.topk` chooses.
    """
    sigmoid_scores(options)
    if options.expert_groups > 1 or not options.normalize_selected:
        raise NotImplementedError("experts have no groups, and gates are divided by their sum")
    experts, width = kernel.shape
    settings: Any = SimpleNamespace(
        num_experts_per_tok=options.choices, num_local_experts=experts, hidden_size=width,
        router_scaling_factor=options.scale,
    )  # fmt: skip
    peer = module.Dots3NoteVisionTopKRouter(settings)
    _, gates, chosen = functional_call(peer, {"weight": kernel}, (tokens, bias))
    return dense(experts, chosen, gates)


ROUTERS = {"sigmoid_token_choice": top_k_router(_choose)}
