"""transformers: the router, the layer and the losses of the Switch Transformer."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import SwitchTransformersConfig
from transformers.models.switch_transformers import modeling_switch_transformers as module

from moespec.conformance.peers.adapters.on_torch import Routed, SuiteExpert, float32_at_most, only, shared
from moespec.spec import RouterOutput

__getattr__ = shared


def _route(params: dict[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False) -> RouterOutput:
    """`SwitchTransformersTop1Router` and `SwitchTransformersSparseMLP`, with the capacity of the case."""
    only(options, choices=1, batch_priority="none")
    float32_at_most(tokens)
    capacity = options.capacity(train=train)
    settings = SwitchTransformersConfig(
        d_model=options.width, d_ff=1, num_experts=options.experts, expert_capacity=capacity
    )
    peer = module.SwitchTransformersSparseMLP(settings).eval()
    kernel = params["kernel"].T
    chosen, probability, _ = functional_call(peer.router, {"classifier.weight": kernel}, (tokens,))
    slots = torch.nn.functional.one_hot((chosen.cumsum(dim=1) - 1).clamp(min=0), options.tokens)[..., :capacity]
    dispatch = (chosen[..., None] * slots).to(tokens.dtype)

    def layer(tokens: Tensor, experts: Any) -> Tensor:
        for e in range(options.experts):
            peer.experts[f"expert_{e}"] = SuiteExpert(experts, e, options.experts)
        result: Tensor = functional_call(peer, {"router.classifier.weight": kernel}, (tokens,))
        return result

    return RouterOutput(Routed(dispatch, dispatch * probability[..., None], layer), {}, {})


def moe_layer(tokens: Tensor, routing: Routed, experts: Any) -> Tensor:
    """`SwitchTransformersSparseMLP.forward` with the experts of the suite."""
    return routing.whole(tokens, experts)


def balance_loss(scores: Tensor) -> Tensor:
    """`load_balancing_loss_func` of `modeling_switch_transformers`, with the first maximum as the choice."""
    return torch.as_tensor(module.load_balancing_loss_func(scores, scores.argmax(dim=-1)))  # annotated as float


def z_loss(logits: Tensor) -> Tensor:
    """`router_z_loss_func` of `modeling_switch_transformers`."""
    return torch.as_tensor(module.router_z_loss_func(logits))


ROUTERS = {"softmax_token_choice": SimpleNamespace(route=_route)}
