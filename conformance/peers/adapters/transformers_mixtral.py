"""transformers: Mixtral's router and balance loss. The router drops no token, so the adapter rejects cases with drops."""

import importlib
from typing import Any

import torch
from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import (
    dropless,
    float32_at_most,
    log_of,
    shared,
    top_k_router,
    transformers_gates,
)

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.mixtral.modeling_mixtral")


def _choose(tokens: Tensor, kernel: Tensor, options: Any) -> Tensor:
    """`MixtralTopKRouter`, which divides the gates of a token by their sum (SA-3)."""
    return transformers_gates(module.MixtralTopKRouter, tokens, kernel, options.choices)


def token_choice(scores: Tensor, *, choices: int, capacity: int) -> Any:
    """`MixtralTopKRouter` on the logarithm of the scores, because the router applies a softmax."""
    float32_at_most(scores)
    experts = scores.shape[2]
    if choices > experts or (scores <= 0).any():
        raise NotImplementedError("there are experts to choose, and a softmax is positive")
    logits, identity = scores.log().flatten(0, 1), torch.eye(experts, dtype=scores.dtype)
    gates = transformers_gates(module.MixtralTopKRouter, logits, identity, choices)
    return dropless(scores, gates.reshape(scores.shape), capacity)


def balance_loss(scores: Tensor, *, choices: int | None = None) -> Tensor:
    """`load_balancing_loss_func` on the logarithm of the scores, with two choices by default."""
    options = {} if choices is None else {"top_k": choices}
    logits, experts = log_of(scores), scores.shape[2]
    if experts == 1:
        raise NotImplementedError("there are experts to choose")
    losses: list[Any] = [module.load_balancing_loss_func((group,), experts, **options) for group in logits]
    return torch.stack(losses).mean()


ROUTERS = {"softmax_token_choice": top_k_router(_choose)}
