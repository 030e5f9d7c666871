"""transformers: the router of dots3's vision encoder. The router drops no token, so the adapter rejects cases with drops."""

import importlib
from typing import Any

from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import SIGMOID, only, shared, top_k_router, transformers_gates

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.dots3_note.modeling_dots3_note")


def _choose(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor) -> Tensor:
    """`Dots3NoteVisionTopKRouter`."""
    only(options, expert_groups=1, normalize_selected=True, **SIGMOID)
    router = module.Dots3NoteVisionTopKRouter
    return transformers_gates(router, tokens, kernel, options.choices, bias, router_scaling_factor=options.scale)


ROUTERS = {"sigmoid_token_choice": top_k_router(_choose)}
