"""The MoE layers that the benchmarks compile and time: one layer for each router, and the layers of google-research/vmoe."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np


class Routed(NamedTuple):
    """A router and its inputs, except for the tokens.

    params: the trainable parameters, under the key "router". batch: the remaining inputs, such as ids, hash tables, noise and state.
    route: a function from `params`, `batch` and tokens to the output of the router. shape: (groups, tokens per group).
    """

    params: dict[str, Any]
    batch: dict[str, Any]
    route: Callable[[Any, Any, Any], Any]
    shape: tuple[int, int]


def routed(
    B: Any,
    name: str,
    random: np.random.Generator,
    *,
    groups: int,
    tokens: int,
    width: int,
    experts: int,
    **options: Any,
) -> Routed:
    """Return the router `name` with `options`, random noise and random initial parameters."""
    shape = (1, groups * tokens) if name == "base" else (groups, tokens)  # BASE balances all groups together
    router = B.ROUTERS[name]
    ids = router.requires == "ids"
    more = {"ids": shape[1]} if ids else {}
    settings = router.options(width=width, experts=experts, tokens=shape[1], **more, **options)
    weights = {"router": router.init(random, settings)}
    batch: dict[str, Any] = {}
    if ids:
        batch = {"ids": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape), **weights}
    if noise := router.noise(settings):
        batch["noise"] = drawn(random, replace(noise, shape=(shape[0], *noise.shape)))

    if state := router.initial_state(settings):
        batch["state"] = state

    def route(params: Any, batch: Any, x: Any) -> Any:
        needed: dict[str, Any] = {"ids": batch["ids"]} if ids else {}
        own, grouped = (batch if ids else params)["router"], x.reshape((*shape, width))
        needed |= {"state": batch.get("state"), "noise": batch.get("noise")}
        return router.route(own, grouped, settings, train=True, **needed)

    return Routed({} if ids else weights, batch, route, shape)


def drawn(random: np.random.Generator, noise: Any) -> Any:
    """Draw an array of noise with the shape and the distribution that `noise` specifies."""
    low, high = noise.interval or (0.0, 0.0)
    values = random.standard_normal(noise.shape) if noise.interval is None else random.uniform(low, high, noise.shape)
    return values.astype(np.float32)


def perceptron(width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The parameter shapes of an MLP."""
    return {"w1": (width, hidden), "b1": (hidden,), "w2": (hidden, width), "b2": (width,)}


def vmoe_layers(tokens: int, hidden: int, experts: int, dtype: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield (name, choices, module) for each layer of google-research/vmoe. Yield nothing if vmoe is not installed."""
    if not find_spec("vmoe"):
        return
    vit_moe = import_module("vmoe.nn.vit_moe")
    capacity = -(-tokens // experts)
    sizes = {"mlp_dim": hidden, "num_experts": experts, "group_size": tokens, "deterministic": True, "dtype": dtype}
    for kind in ("einsum", "indices"):
        for k in (1, 2):
            dispatcher = {"name": kind, "capacity": k * capacity, "bfloat16": False, "batch_priority": False}
            router: dict[str, Any] = {"dispatcher": dispatcher, "num_selected_experts": k}
            yield f"vmoe {kind}, k = {k}", k, vit_moe.MlpMoeBlock(router=router, **sizes)
    dispatcher = {"name": "einsum", "capacity": capacity, "bfloat16": False}
    router = {"name": "NoisyTopItemsPerExpertRouter", "dispatcher": dispatcher}
    yield "vmoe expert choice", 1, vit_moe.MlpMoeBlock(router=router, **sizes)
    router = {"name": "vmoe.projects.soft_moe.router.SoftRouter", "num_slots": capacity}
    yield "vmoe soft", 1, vit_moe.MlpMoeBlock(router=router, **sizes)
