"""transformers: NLLB-MoE's router, with the capacity of the case and without padding.

The random numbers of a case decide which tokens keep their second expert. The adapter rejects cases that sample the second expert.
"""

import importlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import float32_at_most, only, shared, sparse
from moespec.spec import RouterOutput

__getattr__ = shared
module: Any = importlib.import_module("transformers.models.nllb_moe.modeling_nllb_moe")
PASSED = ("normalize_when",)


def _route(
    params: dict[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False, noise: Tensor | None = None
) -> RouterOutput:
    """`NllbMoeTop2Router`."""
    float32_at_most(tokens)
    only(options, choices=2, normalize_selected=True)
    prioritized = options.batch_priority != "none"
    if prioritized:
        only(options, batch_priority="max")
    if noise is not None and getattr(options, "second_expert", "all") != "random":
        raise NotImplementedError("the draws are those that keep a second expert")
    if noise is not None:
        only(options, hold_unkept=False)
    capacity = options.capacity(train=train)
    settings = module.NllbMoeConfig(
        hidden_size=options.width, num_experts=options.experts, expert_capacity=capacity, router_bias=False,
        router_dtype="float32", moe_eval_capacity_token_fraction=-1.0,
        second_expert_policy="all" if noise is None else "random",
        batch_prioritized_routing=prioritized,
    )  # fmt: skip
    gates = []
    for group, draws in zip(tokens, [None] * len(tokens) if noise is None else noise, strict=True):
        peer = module.NllbMoeTop2Router(settings).eval()
        with mock.patch.object(torch, "rand_like", return_value=draws):
            gates.append(functional_call(peer, {"classifier.weight": params["kernel"].T}, (group,))[1])
    scores = (tokens @ params["kernel"]).softmax(dim=-1)
    order = scores.amax(dim=-1).argsort(dim=-1, descending=True, stable=True) if prioritized else None
    return RouterOutput(sparse(scores, torch.stack(gates), 2, capacity, order), {}, {})


ROUTERS = {name: SimpleNamespace(route=_route) for name in ("gshard", "softmax_token_choice")}
