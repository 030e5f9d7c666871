"""Cases of gated experts, called directly and in a layer, and of a shared expert."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, tensor
from moespec.conformance.author.inputs import distinct, experts, grid, groups_tokens, prefixed, scores, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Tensor
from moespec.spec.algorithms.gated_experts import LIMITS, activated, second_factor, silu

NAME = "gated_experts"
G, T, E, D = 2, 6, 3, 4
LIMIT = LIMITS["clamped_silu"]


def cases() -> Iterator[Definition]:
    yield from _alone()
    yield from _bounded()
    yield from _layers()


def _alone() -> Iterator[Definition]:
    """Returns cases of gated experts outside a layer, with SiLU and GELU, with and without biases."""
    for name, activation, biased in (
        ("swiglu", "silu", False),
        ("swiglu_biases", "silu", True),
        ("geglu", "gelu", True),
    ):
        values = experts(f"gated/{name}", gated=True, biased=biased)
        slots = tensor(grid(f"gated/{name}", (G, E, 2, D)), "groups experts capacity width")
        inputs = {"inputs": slots, **prefixed(values)}
        params = {each: f"experts/{each}" for each in values}
        stages = (call("expert_mlp", {"inputs": "inputs", "params": params}, gelu="tanh", activation=activation),)
        purpose = f"Gated experts with {activation}, {'each linear map with a bias' if biased else 'without biases'}."
        for kind, end in (("value", ""), ("gradient", "_gradient")):
            yield composed(NAME, f"{name}{end}", kind, purpose, inputs=inputs, stages=stages)


def _bounded() -> Iterator[Definition]:
    """Returns gradients of experts with the other activations, for slots so large that many bounds apply."""
    for activation in ("relu2", "clamped_silu", "clamped_quick_gelu", "situ"):
        gated = activation != "relu2"
        values = experts(f"gated/{activation}", gated=gated, biased=activation == "clamped_quick_gelu")
        slots = tensor(
            grid(f"gated/{activation}", (G, E, 4, D), reach=16.0 if gated else 2.0, step=0.5),
            "groups experts capacity width",
        )
        inputs, params = {"inputs": slots, **prefixed(values)}, {each: f"experts/{each}" for each in values}
        stages = (call("expert_mlp", {"inputs": "inputs", "params": params}, gelu="tanh", activation=activation),)
        purpose = f"Experts with {activation}, {'gated' if gated else 'not gated'}. Many factors exceed the bounds."
        yield composed(NAME, activation, "gradient", purpose, inputs=inputs, stages=stages)


def _layers() -> Iterator[Definition]:
    """Returns layer cases with gated experts. Slots are mostly empty or mostly filled, and some layers have a shared expert."""
    crowd = groups_tokens(np.eye(E)[np.array([[0, 0, 0, 2, 1, 2], [2, 2, 1, 2, 0, 2]])] * 0.5 + 0.25)
    apart = distinct("gated/layer", (G, T, E))
    for name, kind, purpose, values, choices, capacity, shared in (
        ("room", "value", "Room for all.", scores("gated/layer"), 2, T, False),
        ("dropped", "overflow", "A token that is dropped has the shared expert alone.", crowd, 1, 2, True),
        (
            "full",
            "value",
            "A shared expert of another hidden width, beside two chosen ones.",
            scores("gated/full"),
            2,
            4,
            True,
        ),
        ("gradient", "gradient", "By tokens, scores and the parameters of all experts.", apart, 1, T, True),
        ("gate", "value", "A sigmoid gate weights the shared expert.", scores("gated/gate"), 2, 4, True),
        ("gate_gradient", "gradient", "By all arrays, including the gate of the shared expert.", apart, 1, T, True),
    ):
        key = f"gated/layer_{name}"
        routed = experts(key, gated=True, biased=False)
        other = experts(f"{key}/shared", 1, h=3, gated=True, biased=False)
        inputs = {"tokens": tokens(key), "scores": values, **prefixed(routed)}
        arguments: dict[str, Any] = {"params": {each: f"experts/{each}" for each in routed}}
        if shared:
            alone = {each: Tensor(value.array[0], value.axes[1:]) for each, value in other.items()}
            if name.startswith("gate"):
                alone["gate"] = tensor(grid(f"{key}/gate", (D,), reach=1.0), "width")
            inputs |= prefixed(alone, "shared")
            arguments["shared"] = {each: f"shared/{each}" for each in alone}
        allocation = call("token_choice", {"scores": "scores"}, choices=choices, capacity=capacity)
        arguments = {"tokens": "tokens", "routing": allocation.name, **arguments}
        stages = (allocation, call("moe_mlp", arguments, gelu="tanh", activation="silu"))
        flags = ("overflow_drop",) if capacity < T and choices == 1 else ()
        yield composed(NAME, f"layer_{name}", kind, purpose, *flags, inputs=inputs, stages=stages)


def _gates_last(params: Any) -> Any:
    names = {"w1": "w3", "b1": "b3", "w3": "w1", "b3": "b1"}
    return {names.get(name, name): value for name, value in params.items()} if "w3" in params else params


def shared_expert_as_one_of_a_mean(B: Spec, tokens: Array, routing: Any, params: Any, **options: Any) -> Array:
    """The output is a weighted mean: the combined output of a token's K choices has weight K, and the shared expert has weight 1."""
    right = B.moe_mlp(tokens, routing, params, **options)
    if options.get("shared") is None:
        return right
    chosen = B.moe_mlp(tokens, routing, params, **{**options, "shared": None})
    K = round(float((routing.dense().dispatch.real != 0).sum(axis=(2, 3)).max()))
    return (K * chosen + (right - chosen)) / (K + 1)


def activation_of_the_product(
    B: Spec, inputs: Array, params: Any, *, gelu: str = "tanh", activation: str = "gelu"
) -> Array:
    """A gated expert applies its activation to the product, f((x w1) * (x w3)), not to the first factor."""
    if "w3" not in params or activation not in ("silu", "gelu"):
        return B.expert_mlp(inputs, params, gelu=gelu, activation=activation)
    biases = {name: params[name][:, None] if name in params else 0 for name in ("b1", "b2", "b3")}
    product = (inputs @ params["w1"] + biases["b1"]) * (inputs @ params["w3"] + biases["b3"])
    return (silu(product) if activation == "silu" else B.gelu(product, form=gelu)) @ params["w2"] + biases["b2"]


def activation_of_the_product_in_the_layer(B: Spec, tokens: Array, routing: Any, params: Any, *, shared: Any = None,
                                           **options: Any) -> Array:  # fmt: skip
    """Each gated expert of the layer applies its activation to the product, f((x w1) * (x w3))."""
    result = B.moe_layer(tokens, routing, partial(activation_of_the_product, B, params=params, **options))
    if shared is None:
        return result
    alone = {name: value[None] for name, value in shared.items()}
    return result + activation_of_the_product(B, tokens[:, None], alone, **options)[:, 0]


def shared_expert_with_a_gate(B: Spec, tokens: Array, routing: Any, params: Any, **options: Any) -> Array:
    """The shared expert has a gate: the sigmoid of a linear map of the token. The gate is 1/2 before training."""
    chosen = B.moe_mlp(tokens, routing, params, **{**options, "shared": None})
    return (chosen + B.moe_mlp(tokens, routing, params, **options)) / 2


def _without_gate(shared: Any) -> Any:
    return None if shared is None else {name: value for name, value in shared.items() if name != "gate"}


def _factors(inputs: Array, params: Any, first: Callable[[Array], Array], second: Callable[[Array], Array]) -> Array:
    """Computes gated experts whose two factors are `first` and `second`."""
    biases = {name: params[name][:, None] if name in params else 0 for name in ("b1", "b2", "b3")}
    product = first(inputs @ params["w1"] + biases["b1"]) * second(inputs @ params["w3"] + biases["b3"])
    return product @ params["w2"] + biases["b2"]


def gate_clamped_after_the_silu(
    B: Spec, inputs: Array, params: Any, *, activation: str = "gelu", **options: Any
) -> Array:
    """With `clamped_silu`, the gate is clamped after the SiLU."""
    if activation != "clamped_silu":
        return B.expert_mlp(inputs, params, activation=activation, **options)
    second = partial(second_factor, activation=activation)
    return _factors(inputs, params, lambda z: np.where(silu(z).real > LIMIT, LIMIT, silu(z)), second)


def situ_with_one_bound(B: Spec, inputs: Array, params: Any, *, activation: str = "gelu", **options: Any) -> Array:
    """SiTU bounds only the first factor."""
    if activation != "situ":
        return B.expert_mlp(inputs, params, activation=activation, **options)
    return _factors(inputs, params, partial(activated, activation=activation, gelu="tanh"), lambda z: z)


def variants() -> Iterator[Variant]:
    computes = "The shared expert has weight 1, although it has a gate."
    yield fixed("shared_expert_without_its_gate", computes, "moe_mlp", "GE-2", row=NAME, shared=_without_gate)
    computes = "The second kernel of a gated expert makes the gate, not the first."
    yield fixed("experts_with_the_gate_last", computes, "expert_mlp", "GE-1b", row=NAME, params=_gates_last)
    computes = "The second kernel of each gated expert of the layer makes the gate, not the first."
    yield fixed("perceptrons_with_the_gate_last", computes, "moe_mlp", "GE-1b", row=NAME, params=_gates_last)
    yield variant(shared_expert_as_one_of_a_mean, "moe_mlp", ledger="GE-2b", row=NAME)
    yield variant(
        shared_expert_with_a_gate, "moe_mlp", ledger="GE-2", who="huggingface/transformers (Qwen2-MoE)", row=NAME
    )
    who = "huggingface/transformers (Step-3.7)"
    yield variant(gate_clamped_after_the_silu, "expert_mlp", ledger="GE-3b", who=who, row=NAME)
    yield variant(situ_with_one_bound, "expert_mlp", ledger="GE-4b", row=NAME)
    who = "Nijikadesu/breakdown-minimind (issue 3)"
    yield variant(activation_of_the_product, "expert_mlp", ledger="GE-1", who=who, row=NAME)
    yield variant(activation_of_the_product_in_the_layer, "moe_mlp", ledger="GE-1", who=who, row=NAME)
