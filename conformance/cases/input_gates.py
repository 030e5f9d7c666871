"""Cases of layers whose combine weights multiply the inputs of the experts."""

from collections.abc import Iterator
from typing import Any

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed
from moespec.conformance.author.inputs import distinct, experts, prefixed, scores, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant

NAME = "input_gates"
G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    for name, kind, purpose, choices, capacity, biased in (
        ("room", "value", "Most slots are empty. The experts have no biases.", 1, T, False),
        ("full", "value", "Two choices. The combine weights do not scale the biases of the experts.", 2, 4, True),
        ("gradient", "gradient", "By tokens, scores and parameters.", 2, T, True),
    ):
        key = f"input_gates/{name}"
        routed = experts(key, gated=True, biased=biased)
        values = distinct(key, (G, T, E)) if kind == "gradient" else scores(key)
        inputs = {"tokens": tokens(key), "scores": values, **prefixed(routed)}
        allocation = call("token_choice", {"scores": "scores"}, choices=choices, capacity=capacity)
        params = {each: f"experts/{each}" for each in routed}
        arguments: dict[str, Any] = {"tokens": "tokens", "routing": allocation.name, "params": params}
        layer = call("moe_mlp", arguments, activation="silu", weights_on="input")
        yield composed(NAME, name, kind, purpose, inputs=inputs, stages=(allocation, layer))


def weights_on_both_sides(B: Spec, tokens: Array, routing: Any, params: Any, **options: Any) -> Array:
    """The combine weights multiply the inputs and also the outputs of the experts."""
    if options.get("weights_on", "output") != "input":
        return B.moe_mlp(tokens, routing, params, **options)
    dense = routing.dense()
    return B.moe_mlp(tokens, B.SoftRouting(dense.combine, dense.combine), params, **{**options, "weights_on": "output"})


def variants() -> Iterator[Variant]:
    computes = 'The combine weights multiply the outputs of the experts, although `weights_on` is "input".'
    yield fixed("weights_on_the_output_alone", computes, "moe_mlp", "IG-1", row=NAME, weights_on="output")
    computes = "The combine weights multiply the inputs of the experts."
    yield fixed("weights_on_the_input", computes, "moe_mlp", "IG-1b", row="moe_layer", weights_on="input")
    yield variant(weights_on_both_sides, "moe_mlp", ledger="IG-1", row=NAME)
