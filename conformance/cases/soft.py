"""Cases of soft routing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import SMALL, array_faults, fault, option, size_faults
from moespec.conformance.draw import grid

__all__ = ["cases"]

G, D = 2, 4


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _values()
    yield from _faults()


def _values() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        flags: tuple[str, ...] = (),
        *,
        shape: tuple[int, ...] = (G, 6, D, 3, 2),
        scale: float | None = 1.0,
        tokens: Any = None,
        slots: Any = None,
        **config: Any,
    ) -> Definition:
        g, t, d, e, c = shape
        inputs = {
            "tokens": tensor(grid(f"soft/{name}", (g, t, d)) if tokens is None else tokens, "groups tokens width"),
            "slots": tensor(
                grid(f"soft/{name}/slots", (d, e, c)) if slots is None else slots, "width experts capacity"
            ),
        }
        if scale is not None:
            inputs["scale"] = tensor(np.float32(scale), "")
        gradient = None
        if kind == "gradient":
            gradient = (config.pop("of"), ("tokens", "slots", "scale"))
        return Definition("soft_routing", name, kind, purpose, inputs, config, (), flags, gradient)

    joint, forms = ("joint_softmax",), ("norm_form",)
    yield case("values", "value", "Dispatch sums to 1 over tokens, combine over all slots together.", joint)
    yield case("scale", "value", "A scale of 2.5 sharpens both.", joint, scale=2.5)
    yield case("square", "value", "As many tokens as experts and slots.", joint, shape=(G, 4, D, 4, 4))
    small = grid("soft/small", (G, 6, D), reach=0.0078125, step=0.00048828125)
    yield case("small_paper", "value", "Tokens so short that epsilon counts, in the paper's form.", forms, tokens=small)
    yield case(
        "small_rsqrt",
        "value",
        "The same tokens in the form of the public code.",
        forms,
        tokens=small,
        norm_form="rsqrt",
    )
    empty = grid("soft/empty", (G, 6, D))
    empty[:, 2] = 0
    blank = grid("soft/empty/slots", (D, 3, 2))
    blank[:, 1, 0] = 0
    yield case(
        "zero_token", "degenerate", "A token and a slot of norm 0 have logits 0.", forms, tokens=empty, slots=blank
    )
    yield case(
        "zero_token_rsqrt",
        "degenerate",
        "The same in the other form.",
        forms,
        tokens=empty,
        slots=blank,
        norm_form="rsqrt",
    )
    yield case(
        "unnormalised",
        "value",
        "Without normalisation the scale is not used.",
        ("norm_form",),
        scale=2.0,
        normalize=False,
    )
    yield case("scale_zero", "tie", "A scale of 0 gives uniform weights.", scale=0.0)
    yield case("default_scale", "value", "The scale is 1 if it is not given.", scale=None)
    for first, second in (("soft", "uniform"), ("uniform", "soft"), ("uniform", "uniform")):
        yield case(
            f"{first}_{second}",
            "value",
            f"Ablation: dispatch {first}, combine {second}.",
            ("ablation",),
            dispatch=first,
            combine=second,
        )
    yield case(
        "uniform_more_slots",
        "value",
        "Ablation: dispatch is one part in the number of tokens, combine in that of slots, which is larger.",
        ("ablation",),
        shape=(G, 5, D, 3, 2),
        dispatch="uniform",
        combine="uniform",
    )
    yield case(
        "identity", "value", "Ablation: token t in slot t.", ("ablation",), dispatch="identity", combine="identity"
    )
    size = ("degenerate_size",)
    yield case("one_token", "degenerate", "One token fills every slot.", size, shape=(1, 1, D, 3, 2))
    yield case("one_slot", "degenerate", "One expert with one slot.", size, shape=(G, 6, D, 1, 1))
    yield case("gradient_dispatch", "gradient", "Through the softmax over tokens.", scale=1.5, of="dispatch")
    yield case("gradient_combine", "gradient", "Through the softmax over slots.", scale=1.5, of="combine")
    yield case("gradient_rsqrt", "gradient", "In the other form.", scale=1.5, of="combine", norm_form="rsqrt")
    alone: dict[str, Any]
    for name, other in (("dispatch", "combine"), ("combine", "dispatch")):
        alone = {"of": name, other: "uniform", "normalize": False}
        purpose = f"Of {name}, unnormalised, with {other} uniform."
        yield case(f"gradient_{name}_alone", "gradient", purpose, ("ablation",), scale=1.5, **alone)
    origin = grid("soft/origin", (G, 6, D))
    origin[:, 1] = 0
    yield case(
        "gradient_zero_token",
        "gradient",
        "At a token of norm 0 the norm counts as a constant.",
        ("norm_form",),
        tokens=origin,
        of="dispatch",
    )


def _faults() -> Iterator[Definition]:
    name, stage = "soft_routing", "routing"
    mixed = {
        "tokens": tensor(grid("negative/soft", (SMALL.groups, SMALL.tokens, SMALL.width)), "groups tokens width"),
        "slots": tensor(grid("negative/soft/slots", (SMALL.width, 2, 2)), "width experts capacity"),
    }
    yield from array_faults(name, stage, "tokens", mixed, {})
    yield from array_faults(name, stage, "slots", mixed, {}, "slots_")
    scaled = {**mixed, "scale": tensor(np.float32(1), "")}
    yield from array_faults(name, stage, "scale", scaled, {}, "scale_")
    yield from size_faults(name, stage, mixed, {}, slots=0)
    forms = {"norm_form": "paper", "dispatch": "soft", "combine": "soft"}
    yield option(name, stage, "norm_form", "norm_form", mixed, forms, norm_form="l1")
    yield option(name, stage, "dispatch", "dispatch", mixed, forms, dispatch="hard")
    yield option(name, stage, "identity_alone", "dispatch", mixed, forms, dispatch="identity")
    both = {"dispatch": "identity", "combine": "identity"}
    more = {"slots": tensor(grid("negative/soft/more", (SMALL.width, 2, 3)), "width experts capacity")}
    yield fault(name, stage, "identity_slots", "ShapeError", "slots", mixed, both, wrong_inputs=more)
