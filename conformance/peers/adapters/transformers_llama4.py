"""transformers: Llama 4's router and layer without the shared expert. The router drops no token, so cases with drops are rejected."""

import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import Routed, dropless, float32_at_most, only, shared

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.llama4.modeling_llama4")


def token_choice(scores: Tensor, *, choices: int, capacity: int) -> Routed:
    """`Llama4Router` on the inverse sigmoid of the scores, because the router applies a sigmoid."""
    float32_at_most(scores)
    _, count, experts = scores.shape
    if choices > experts or (scores <= 0).any() or (scores >= 1).any():
        raise NotImplementedError("there are experts to choose, and a sigmoid is between 0 and 1")
    settings: Any = SimpleNamespace(num_experts_per_tok=choices, num_local_experts=experts, hidden_size=experts)
    weights = {"weight": torch.eye(experts, dtype=scores.dtype)}
    router = functional_call(module.Llama4Router(settings), weights, (scores.logit().flatten(0, 1),))

    def layer(tokens: Tensor, inner: Any) -> Tensor:
        def grouped(inputs: Tensor) -> Tensor:
            outputs: Tensor = inner(inputs.reshape(1, experts, -1, inputs.shape[1]))
            return outputs.flatten(0, 2)

        peer: Any = SimpleNamespace(
            hidden_dim=tokens.shape[2], router=lambda _: router, experts=grouped, shared_expert=torch.zeros_like
        )
        output: Tensor = module.Llama4TextMoe.forward(peer, tokens)[0]
        return output.reshape(tokens.shape)

    routing = dropless(scores, router[0].reshape(-1, count, experts), capacity).dense()
    return Routed(routing.dispatch, routing.combine, layer)


def moe_layer(tokens: Tensor, routing: Routed, experts: Any) -> Tensor:
    """`Llama4TextMoe.forward` with the experts of the suite."""
    return routing.whole(tokens, experts)


def moe_mlp(
    tokens: Tensor,
    routing: Routed,
    params: Mapping[str, Tensor],
    *,
    shared: Mapping[str, Tensor] | None = None,
    gelu: str = "tanh",
    activation: str = "silu",
    weights_on: str = "input",
) -> Tensor:
    """`Llama4TextMoe.forward` with `Llama4TextExperts`."""
    only({"activation": activation, "weights_on": weights_on}, activation="silu", weights_on="input")
    if shared is not None:
        raise NotImplementedError("the adapter runs the layer without the shared expert")
    if params.keys() != {"w1", "w2", "w3"}:
        raise NotImplementedError("experts are gated and have no biases")
    count, width, hidden = params["w1"].shape
    if params["w2"].shape[2] != width:
        raise NotImplementedError("experts have outputs as wide as their inputs")
    config: Any = SimpleNamespace(
        num_local_experts=count, hidden_size=width, intermediate_size=hidden, hidden_act=activation
    )
    peer = module.Llama4TextExperts(config)
    weights = {"gate_up_proj": torch.cat([params["w1"], params["w3"]], dim=2), "down_proj": params["w2"]}

    def experts(inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(peer, weights, (inputs.flatten(0, 2),))
        return outputs.reshape(inputs.shape)

    return routing.whole(tokens, experts)
