"""Cases of the experts, the layer and the metrics."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.allocations import CROWD, distinct, scores
from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases", "experts"]

G, T, E, D, H = 2, 6, 3, 4, 3


def experts(key: str, e: int = E, d: int = D, h: int = H, out: int = D) -> dict[str, Tensor]:
    """The parameters of expert MLPs; biases are not 0, so that an empty slot has an output."""
    return {
        "experts/w1": tensor(grid(f"{key}/w1", (e, d, h), reach=1.0), "experts width hidden"),
        "experts/b1": tensor(grid(f"{key}/b1", (e, h), reach=0.5, centre=0.25), "experts hidden"),
        "experts/w2": tensor(grid(f"{key}/w2", (e, h, out), reach=1.0), "experts hidden width"),
        "experts/b2": tensor(grid(f"{key}/b2", (e, out), reach=0.5, centre=0.25), "experts width"),
    }


def cases() -> Iterator[Definition]:
    """All cases of this module."""

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
