"""Cases of experts that compute at a latent width."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, tensor
from moespec.conformance.author.inputs import distinct, experts, grid, prefixed, scores, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Tensor

NAME = "latent_experts"
G, T, E, D, L = 2, 6, 3, 4, 3


def cases() -> Iterator[Definition]:
    for name, kind, purpose, choices, capacity, norm in (
        ("room", "value", "Most slots are empty.", 1, T, False),
        ("norm", "value", "An RMSNorm of the weighted sum, before the projection up.", 2, 4, True),
        ("dropped", "overflow", "The output of a dropped token comes only from the shared expert, which has the full width.", 1, 1, True),
        ("gradient", "gradient", "By tokens, scores and all parameters.", 2, T, True),
    ):  # fmt: skip
        key = f"latent/{name}"
        routed, shared = experts(key, d=L, out=L, gated=True, biased=False), {}
        if name in ("dropped", "gradient"):
            shared = {
                each: Tensor(value.array[0], value.axes[1:]) for each, value in experts(f"{key}/shared", 1).items()
            }
        latent = parameters(key, norm=norm)
        values = distinct(key, (G, T, E)) if kind == "gradient" else scores(key)
        inputs = {"tokens": tokens(key), "scores": values, **prefixed(routed), **prefixed(latent, "latent")}
        arguments: dict[str, Any] = {"params": {each: f"experts/{each}" for each in routed}}
        arguments["latent"] = {each: f"latent/{each}" for each in latent}
        if shared:
            inputs |= prefixed(shared, "shared")
            arguments["shared"] = {each: f"shared/{each}" for each in shared}
        allocation = call("token_choice", {"scores": "scores"}, choices=choices, capacity=capacity)
        layer = call("moe_mlp", {"tokens": "tokens", "routing": allocation.name, **arguments}, activation="silu")
        flags = ("overflow_drop",) if kind == "overflow" else ()
        yield composed(NAME, name, kind, purpose, *flags, inputs=inputs, stages=(allocation, layer))


def parameters(key: str, *, norm: bool) -> dict[str, Tensor]:
    """Return the projections of a latent layer, and the scale of its norm if `norm`."""
    arrays = {"down": tensor(grid(f"{key}/down", (D, L), reach=1.0), "width latent")}
    if norm:
        arrays["norm"] = tensor(grid(f"{key}/norm", (L,), reach=0.5, centre=1.0), "latent")
    return {**arrays, "up": tensor(grid(f"{key}/up", (L, D), reach=1.0), "latent width")}


def _without_norm(latent: Any) -> Any:
    return None if latent is None else {name: value for name, value in latent.items() if name != "norm"}


def norm_of_each_expert(B: Spec, tokens: Array, routing: Any, params: Any, *, latent: Any = None, shared: Any = None,
                        norm_epsilon: float = 1e-6, **options: Any) -> Array:  # fmt: skip
    """The RMSNorm of a latent layer normalises the output of each expert, not the weighted sum of the outputs."""
    if latent is None or "norm" not in latent:
        return B.moe_mlp(tokens, routing, params, latent=latent, shared=shared, **options)
    form = {name: options[name] for name in ("gelu", "activation") if name in options}

    def normalised(slots: Array) -> Array:
        y = B.expert_mlp(slots, params, **form)
        return y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + norm_epsilon) * latent["norm"]

    y = B.moe_layer(tokens @ latent["down"], routing, normalised) @ latent["up"]
    if shared is None:
        return y
    served = B.moe_mlp(tokens, routing, params, latent=latent, shared=shared, norm_epsilon=norm_epsilon, **options)
    return y + served - B.moe_mlp(tokens, routing, params, latent=latent, norm_epsilon=norm_epsilon, **options)


def _with_norm(latent: Any) -> Any:
    return None if latent is None else {"norm": np.ones(len(latent["up"])), **latent}


def variants() -> Iterator[Variant]:
    computes = "A latent layer always normalises the weighted sum, with the scale 1 if there is no norm."
    yield fixed("latent_layer_with_a_norm", computes, "moe_mlp", "LE-2b", row=NAME, latent=_with_norm)
    computes = "A latent layer ignores its norm."
    yield fixed("latent_layer_without_norm", computes, "moe_mlp", "LE-2", row=NAME, latent=_without_norm)
    yield variant(norm_of_each_expert, "moe_mlp", ledger="LE-2", row=NAME)
