"""soft-moe-pytorch: `SoftMoE`.

The RMS norms of tokens and slots each have a trainable gamma. The adapter sets the gamma of the slots to the router's `scale`.
The gamma of the tokens, which the paper does not have, keeps the initial value 1.
"""

from typing import Any

import torch
from soft_moe_pytorch import SoftMoE
from soft_moe_pytorch.soft_moe import Experts, FeedForward
from torch import Tensor, nn
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import (
    PAPER,
    Recorded,
    Routed,
    SuiteExperts,
    only,
    shared,
    soft_moe_router,
)

__getattr__ = shared


def soft_routing(tokens: Tensor, slots: Tensor, *, scale: Any = 1.0, **forms: Any) -> Routed:
    """The weights inside `SoftMoE.forward`."""
    only({"normalize": True, **PAPER, **forms}, normalize=True, **PAPER)
    width, experts, capacity = slots.shape
    scale = torch.as_tensor(scale, dtype=slots.dtype)

    def layer(tokens: Tensor, experts_of_suite: Any) -> Tensor:
        peer = SoftMoE(width, num_experts=experts, num_slots=capacity, offload_unused_experts_to_cpu=False)
        peer.experts = SuiteExperts(experts_of_suite)
        params = {
            "norm.gamma": torch.ones(width, dtype=tokens.dtype),
            "slot_norm.gamma": scale.expand(width),
            "slot_embeds": slots.permute(1, 2, 0),
        }
        result: Tensor = functional_call(peer, params, (tokens,))
        return result

    with Recorded() as recorded:
        layer(tokens, lambda inputs: inputs)
    *_, dispatch, combine = recorded.weights
    return Routed(dispatch, combine.reshape(dispatch.shape), layer)


def moe_layer(tokens: Tensor, routing: Routed, experts: Any) -> Tensor:
    """`SoftMoE.forward` with the experts of the suite."""
    return routing.whole(tokens, experts)


def expert_mlp(inputs: Tensor, params: dict[str, Tensor], *, gelu: str = "erf") -> Tensor:
    """`Experts` of `FeedForward` modules, in which `nn.GELU` has the form that the case sets."""
    experts, width, hidden = params["w1"].shape
    if params["w2"].shape[2] != width:
        raise NotImplementedError("FeedForward has outputs as wide as its inputs")
    members = [FeedForward(width, mult=hidden / width) for _ in range(experts)]
    state = {}
    for e, member in enumerate(members):
        member[1] = nn.GELU(approximate={"erf": "none", "tanh": "tanh"}[gelu])
        for place, number in ((0, "1"), (3, "2")):
            state[f"experts.{e}.{place}.weight"] = params[f"w{number}"][e].T
            state[f"experts.{e}.{place}.bias"] = params[f"b{number}"][e]
    result: Tensor = functional_call(Experts(members, offload_unused_experts_to_cpu=False), state, (inputs,))
    return result


ROUTERS = {"soft_moe": soft_moe_router(soft_routing, "`SoftMoE.forward` and the weights inside it.")}
