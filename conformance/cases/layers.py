"""Cases of the experts, the layer and the metrics."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option, size_faults, small_experts
from moespec.conformance.cases.inputs import CROWD, distinct, experts, scores, tokens
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _experts()
    yield from _layer()
    yield from _expert_faults()
    yield from _layer_faults()


def _experts() -> Iterator[Definition]:

    def mlp(name: str, purpose: str, gelu: str, kind: str = "value", **sizes: int) -> Definition:
        inputs = {
            "inputs": tensor(grid(f"layer/{name}", (G, E, 2, D)), "groups experts capacity width"),
            **experts(f"layer/{name}", **sizes),
        }
        gradient = ("outputs", tuple(inputs)) if kind == "gradient" else None
        return Definition(
            "moe_layer", name, kind, purpose, inputs, {"gelu": gelu}, ("experts",), ("gelu_form",), gradient
        )

    yield mlp("experts_tanh", "Expert MLPs with the tanh form of GELU.", "tanh")
    yield mlp("experts_erf", "Expert MLPs with the exact GELU.", "erf")
    yield mlp("experts_tanh_gradient", "By slots, weights and biases.", "tanh", "gradient")
    yield mlp("experts_erf_gradient", "The same in the exact form.", "erf", "gradient")
    yield mlp("experts_width", "Experts whose output has another width.", "tanh", out=3)
    yield Definition(
        "moe_layer", "experts_idle", "value", "Experts that nobody uses give 0, not what they make of empty slots.",
        {
            "inputs": tensor(grid("layer/experts_idle", (G, E, 2, D)), "groups experts capacity width"),
            **experts("layer/experts_idle"),
            "used": tensor(np.array([1, 0, 1]), "experts"),
        },
        {"gelu": "tanh"}, ("experts",), ("unused_expert",),
    )  # fmt: skip


def _layer() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        allocation: str,
        values: Tensor,
        flags: tuple[str, ...] = (),
        *,
        mlps: bool = True,
        stages: tuple[str, ...] = ("metrics", "layer"),
        **options: Any,
    ) -> Definition:
        soft = allocation == "soft_routing"
        g, t, e = (G, T, E) if soft else values.array.shape
        inputs = {
            "tokens": tensor(grid(f"layer/{name}", (g, t, D)), "groups tokens width"),
            "slots" if soft else "scores": values,
        }
        if mlps:
            inputs |= experts(f"layer/{name}", e)
        gradient = None
        if kind == "gradient":
            gradient, stages = ("output", tuple(inputs)), ("layer",)
        config = {"allocation": allocation, "options": options}
        return Definition("moe_layer", name, kind, purpose, inputs, config, stages, flags, gradient)

    drop, empty = ("overflow_drop", "empty_slot"), ("empty_slot",)
    yield case(
        "token_choice", "value", "Two choices, room for all.", "token_choice", scores("layer/a"), choices=2, capacity=T
    )
    yield case(
        "dropped", "overflow", "A dropped token gets 0; an empty slot reaches nobody although its expert has biases.",
        "token_choice", both(CROWD), drop, choices=1, capacity=2,
    )  # fmt: skip
    yield case(
        "expert_choice",
        "value",
        "A token may sit in several slots, or in none.",
        "expert_choice",
        scores("layer/b"),
        ("uncovered_token",),
        capacity=2,
    )
    holes = np.where(grid("layer/holes", (G, T, E)) > 0.25, np.asarray(scores("layer/c").array), 0.0)
    yield case(
        "expert_choice_holes",
        "value",
        "Empty slots in Expert Choice.",
        "expert_choice",
        groups_tokens(holes),
        empty,
        capacity=3,
        drop_zero=True,
    )
    slots = tensor(grid("layer/slots", (D, 3, 2)), "width experts capacity")
    yield case(
        "soft",
        "value",
        "Slots mix the tokens themselves, not the normalised ones.",
        "soft_routing",
        slots,
        ("unnormalised_tokens",),
    )
    yield case(
        "soft_uniform",
        "value",
        "Every slot sees the mean token.",
        "soft_routing",
        slots,
        ("ablation",),
        dispatch="uniform",
        combine="uniform",
    )
    yield case(
        "identity_experts",
        "value",
        "Dispatch and combine alone.",
        "token_choice",
        scores("layer/d"),
        drop,
        mlps=False,
        choices=2,
        capacity=2,
    )
    yield case(
        "tied",
        "tie",
        "Equal scores.",
        "token_choice",
        groups_tokens(np.full((G, T, E), 0.25)),
        ("tie_order",),
        choices=2,
        capacity=T,
    )
    yield case(
        "one_token",
        "degenerate",
        "One token.",
        "token_choice",
        scores("layer/e", (1, 1, E)),
        ("degenerate_size",),
        choices=2,
        capacity=1,
    )
    yield case(
        "one_expert",
        "degenerate",
        "One expert with room for all.",
        "expert_choice",
        scores("layer/f", (G, T, 1)),
        ("degenerate_size",),
        capacity=T,
    )
    yield case(
        "gradient_token_choice",
        "gradient",
        "By tokens, scores and expert weights, with drops.",
        "token_choice",
        distinct("layer/g", (G, T, E)),
        drop,
        choices=2,
        capacity=2,
    )
    yield case(
        "gradient_expert_choice",
        "gradient",
        "Tokens in several slots add their gradients.",
        "expert_choice",
        distinct("layer/h", (G, T, E)),
        capacity=2,
    )
    yield case(
        "gradient_holes",
        "gradient",
        "Empty slots carry none, though their experts have an output.",
        "expert_choice",
        groups_tokens(
            np.where(grid("layer/holes/g", (G, T, E)) > 0, distinct("layer/holes/s", (G, T, E)).array, -0.25)
        ),
        empty,
        capacity=4,
        drop_zero=True,
    )
    yield case(
        "gradient_soft",
        "gradient",
        "Through both softmaxes and the mixing.",
        "soft_routing",
        tensor(grid("layer/slots/g", (D, 3, 2)), "width experts capacity"),
    )


def _expert_faults() -> Iterator[Definition]:
    name, stage, config = "moe_layer", "experts", {"gelu": "tanh"}
    g, _, e, d = SMALL
    slots = {
        "inputs": tensor(grid("negative/inputs", (g, e, 2, d)), "groups experts capacity width"),
        **small_experts(),
    }
    yield option(name, stage, "gelu", "gelu", slots, config, gelu="relu")
    for argument in slots:
        yield from array_faults(name, stage, argument, slots, config, f"{argument.removeprefix('experts/')}_")
        if argument != "inputs":
            yield from size_faults(name, stage, slots, config, "inner_", **{argument.replace("/", "__"): 1})
    yield from size_faults(name, stage, slots, config, "experts_", experts__w1=0, experts__b2=0)
    idle = {**slots, "used": tensor(np.array([1, 0]), "experts")}
    yield from size_faults(name, stage, idle, config, used=0)


def _layer_faults() -> Iterator[Definition]:
    name, stage = "moe_layer", "layer"
    layer = {
        "tokens": tokens("negative/tokens", (SMALL.groups, SMALL.tokens, SMALL.width)),
        "scores": scores("negative/layer", SHAPE),
        **small_experts(),
    }
    config = {"allocation": "token_choice", "options": {"choices": 1, "capacity": 2}}
    yield from array_faults(name, stage, "tokens", layer, config)
    fewer = {"tokens": tokens("negative/tokens/few", (SMALL.groups, SMALL.tokens - 1, SMALL.width))}
    yield fault(name, stage, "tokens_routing", "ShapeError", "tokens", layer, config, wrong_inputs=fewer)
