"""st-moe-pytorch: `TopNGating` and `MoE`, without random routing.

The threshold is 0, so that no choice is dropped at random. Dispatch contains only 0 and 1, because the straight-through option is off.
The peer's capacity factor does not count choices (`CAPACITY_RULES["st_moe"]`), so the adapter multiplies the factor by choices.
The function `token_choice` receives a capacity, so the adapter disables the peer's minimum capacity of 4 there, but not in the router.
"""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from st_moe_pytorch import MoE
from st_moe_pytorch import st_moe_pytorch as module
from st_moe_pytorch.st_moe_pytorch import TopNGating
from torch import Tensor, nn
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import ONE_FACTOR, Routed, SuiteExperts, log_of, only, shared
from moespec.spec import RouterOutput

__getattr__ = shared


class _Given(nn.Module):
    """A gate that returns precomputed results."""

    def __init__(self, *result: Tensor) -> None:
        super().__init__()
        self.result = result

    def forward(self, tokens: Tensor, **noise: Any) -> tuple[Tensor, ...]:
        """Return dispatch, combine, balance loss and z-loss."""
        return self.result


def _gating(tokens: Tensor, kernel: Tensor, choices: int, **options: Any) -> tuple[Routed, Tensor, Tensor]:
    """Return the routing, the balance loss and the z-loss of `TopNGating` in training."""
    width, count = kernel.shape
    if not 2 <= choices <= count:
        raise NotImplementedError("top_n is at least 2, and at most the number of experts")
    gating = TopNGating(
        width, count, top_n=choices, threshold_train=0.0, straight_through_dispatch_tensor=False, **options
    )
    dispatch, combine, balance, z = functional_call(gating.train(), {"to_gates.weight": kernel.T}, (tokens,))

    def layer(tokens: Tensor, experts: Any) -> Tensor:
        peer = MoE(tokens.shape[-1], num_experts=count, gating_top_n=choices, experts=nn.ModuleList())
        peer.gate, peer.experts = _Given(dispatch, combine, balance, z), SuiteExperts(experts)
        result: Tensor = peer(tokens).outputs
        return result

    return Routed(dispatch, combine, layer), balance, z


def token_choice(scores: Tensor, *, choices: int, capacity: int) -> Routed:
    """`TopNGating` on the logarithm of the scores, because `TopNGating` applies a softmax."""
    if (scores <= 0).any():
        raise NotImplementedError("TopNGating takes a softmax, so scores are positive")
    _, tokens, experts = scores.shape
    if capacity > tokens:
        raise NotImplementedError("TopNGating has no more slots than tokens")
    factor = (capacity + 0.5) * experts / tokens  # rounded down
    with mock.patch.object(module, "MIN_EXPERT_CAPACITY", 1):
        identity = torch.eye(experts, dtype=scores.dtype)
        return _gating(scores.log(), identity, choices, capacity_factor_train=factor)[0]


def z_loss(logits: Tensor) -> Tensor:
    """The router z-loss of `TopNGating` in training."""
    return _losses(logits)[1]


def balance_loss(scores: Tensor) -> Tensor:
    """The balance loss of `TopNGating` in training, on the logarithm of the scores, because `TopNGating` applies a softmax."""
    return _losses(log_of(scores))[0]


def _losses(logits: Tensor) -> tuple[Tensor, Tensor]:
    return _gating(logits, torch.eye(logits.shape[-1], dtype=logits.dtype), 2)[1:]


def moe_layer(tokens: Tensor, routing: Routed, experts: Any) -> Tensor:
    """`MoE.forward` with the experts of the suite."""
    return routing.whole(tokens, experts)


def _route(params: dict[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False) -> RouterOutput:
    """`TopNGating` and `MoE`, with the peer's capacity rule."""
    only(options, **ONE_FACTOR)
    factor = options.choices * options.capacity_factor
    return RouterOutput(_gating(tokens, params["kernel"], options.choices, capacity_factor_train=factor)[0], {}, {})


ROUTERS = {"softmax_token_choice": SimpleNamespace(route=_route)}
