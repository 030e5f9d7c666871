"""Cases of noisy top-k gating: its gates, its load loss and the router."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option, router_faults, router_inputs
from moespec.conformance.cases.inputs import kernel, logits
from moespec.conformance.cases.margins import Noise
from moespec.conformance.cases.routers import with_parameters
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E, D = 2, 5, 3, 3
NORMAL = Noise("tokens experts", reach=2.0, step=0.25)

TIED = np.array(
    [[0.5, 0.5, 0.5], [-1.0, 0.25, 0.25], [0.25, -1.0, 0.25], [0.0, -0.0, -2.0], [2.0, 2.0, -1.0], [-3.0, -3.0, -3.0]]
)


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _affinity()
    yield from _affinity_faults()
    yield from _load_loss()
    yield from _router()


def _affinity() -> Iterator[Definition]:
    name = "noisy_top_k_affinity"

    def noisy(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noise: bool = True,
        reach: float = 2.0,
        step: float = 0.25,
        **config: Any,
    ) -> Definition:
        inputs = {
            "logits": logits(f"{name}/{case}", reach=2.0, step=0.25),
            "noise_logits": logits(f"{name}/{case}/scale", reach=reach, step=step),
        }
        if noise:
            draw = logits(f"{name}/{case}/noise", reach=2.0, step=0.25).array
            inputs["noise"] = groups_tokens(draw + 0.125)  # never 0, so that no noisy logits are equal
        gradient = ("noisy_logits", tuple(inputs)) if kind == "gradient" else None
        stages = ("noisy",) if gradient or not config else ("noisy", "gates")
        return Definition(name, case, kind, purpose, inputs, config, stages, flags, gradient)

    def gates(case: str, kind: str, purpose: str, values: Tensor, *flags: str, choices: int = 2) -> Definition:
        gradient = ("gates", ("noisy_logits",)) if kind == "gradient" else None
        config = {"choices": choices}
        return Definition(name, case, kind, purpose, {"noisy_logits": values}, config, ("gates",), flags, gradient)

    scale, order = "learned_noise", "softmax_of_choices"
    yield noisy("noise", "value", "The scale of the noise is the softplus of the noise logits.", scale)
    yield noisy("both", "value", "Noise, then two choices.", scale, order, choices=2)
    yield noisy(
        "large_scale",
        "value",
        "Noise logits whose exponential overflows float32, and some whose softplus is nearly 0.",
        scale,
        "large_logits",
        reach=200.0,
        step=4.0,
    )
    yield noisy("absent", "degenerate", "Without noise the logits are unchanged.", scale, noise=False)
    yield noisy("gradient_noise", "gradient", "By the logits, the noise logits and the noise.", scale)
    yield gates("values", "value", "Two choices of three.", logits(f"{name}/a"), order)
    yield gates("three", "value", "Three choices of five.", logits(f"{name}/b", (G, 8, 5)), order, choices=3)
    yield gates(
        "large",
        "value",
        "Logits whose exponential overflows float32.",
        logits(f"{name}/c", reach=240.0, step=4.0),
        "large_logits",
    )
    yield gates("tied", "tie", "Among equal logits the lower expert is chosen.", both(TIED), "tie_order")
    near = np.full((G, T, E), 0.5) + (grid(f"{name}/d", (G, T, E), reach=2.0, step=1.0) / 256)
    yield gates("neighbours", "near_tie", "Logits that are neighbours in bfloat16.", groups_tokens(near))
    yield gates("one_choice", "degenerate", "One choice has the gate 1.", logits(f"{name}/e"), order, choices=1)
    yield gates(
        "all_choices", "degenerate", "All are chosen: the softmax.", logits(f"{name}/f"), "degenerate_size", choices=E
    )
    yield gates("one_expert", "degenerate", "One expert.", logits(f"{name}/g", (G, T, 1)), "degenerate_size", choices=1)
    untied = groups_tokens(logits(f"{name}/h", reach=1.0).array + np.arange(E) / 64)
    yield gates("gradient", "gradient", "By the noisy logits.", untied, order)


def _affinity_faults() -> Iterator[Definition]:
    name, (g, t, e, _) = "noisy_top_k_affinity", SMALL
    given, config = {"noisy_logits": logits(f"{name}/negative", SHAPE)}, {"choices": 2}
    yield from array_faults(name, "gates", "noisy_logits", given, config)
    for case, wrong in (("no_choice", 0), ("many_choices", e + 1)):
        yield option(name, "gates", case, "choices", given, config, choices=wrong)
    parts = {part: logits(f"{name}/negative/{part}", SHAPE) for part in ("logits", "noise_logits", "noise")}
    for part in ("noise_logits", "noise"):
        yield from array_faults(name, "noisy", part, parts, {}, f"{part}_")
        fewer = {part: logits(f"{name}/negative/{part}/few", (g, t - 1, e))}
        yield fault(name, "noisy", f"{part}_shape", "ShapeError", part, parts, {}, wrong_inputs=fewer)


def _load_loss() -> Iterator[Definition]:
    name = "noisy_top_k_load_loss"

    def inputs(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 2.0) -> dict[str, Tensor]:
        clean = logits(f"{name}/{key}", shape, reach=1.0)
        noise = logits(f"{name}/{key}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64  # no ties in a row
        scale = logits(f"{name}/{key}/scale", shape, reach=reach, step=0.25)
        return {"logits": clean, "noise_logits": scale, "noisy_logits": groups_tokens(clean.array + noise)}

    def loss(
        case: str, kind: str, purpose: str, given: Mapping[str, Tensor], *flags: str, choices: int = 1
    ) -> Definition:
        gradient = ("loss", tuple(given)) if kind == "gradient" else None
        return Definition(name, case, kind, purpose, given, {"choices": choices}, flags=flags, gradient=gradient)

    other = "threshold_excludes_self"
    yield loss("one_choice", "value", "The largest noisy logit of the others.", inputs("a"), other)
    yield loss("two_choices", "value", "The second largest of the others.", inputs("b"), other, choices=2)
    yield loss("three_choices", "value", "Three of five.", inputs("c", (G, 8, 5)), other, choices=3)
    yield loss("wide", "value", "Large noise logits.", inputs("d", reach=40.0), "learned_noise", "large_logits")
    level = dict.fromkeys(("logits", "noise_logits", "noisy_logits"), groups_tokens(np.zeros((G, 8, 4))))
    yield loss("equal", "tie", "Equal logits: every expert is chosen with probability one half.", level, other)
    tied = {**inputs("e", (G, len(TIED), E)), "noisy_logits": both(TIED)}
    yield loss("tied", "tie", "Equal noisy logits at the threshold.", tied, other)
    yield loss("one_token", "degenerate", "One token.", inputs("f", (1, 1, E)), "degenerate_size")
    yield loss("gradient", "gradient", "By all logits, through the threshold too.", inputs("g"), other, choices=2)

    given = inputs("negative", SHAPE)
    for part in given:
        prefix = "" if part == "logits" else f"{part}_"
        yield from array_faults(name, "loss", part, given, {"choices": 1}, prefix)
    for wrongly, wrong in (("no_choice", 0), ("all_choices", SMALL.experts)):
        yield option(name, "loss", wrongly, "choices", given, {"choices": 1}, choices=wrong)


def _router() -> Iterator[Definition]:
    name = "noisy_top_k"

    def case(
        case: str,
        kind: str,
        purpose: str,
        *flags: str,
        noisy: bool = True,
        sizes: Any = (T, E, D),
        zero: bool = False,
        **fields: Any,
    ) -> Definition:
        kernels = {
            part: kernel(f"routers/{name}/{case}/{part}", sizes[2], sizes[1]) for part in ("kernel", "noise_kernel")
        }
        if zero:
            kernels = {part: tensor(np.zeros((sizes[2], sizes[1])), "width experts") for part in kernels}
        noise = NORMAL if noisy else None
        return with_parameters(
            name, case, kind, purpose, *flags, parameters=kernels, noise=noise, sizes=sizes, **fields
        )

    room = "room_for_all"
    yield case("noise", "value", "Training, with both losses.", "learned_noise", "generated_code", room, steps=True)
    yield case("quiet", "value", "Evaluation: no noise, and no load loss.", "learned_noise", room, noisy=False)
    yield case(
        "five_experts",
        "value",
        "Three of five experts, other weights.",
        "learned_noise",
        sizes=(6, 5, D),
        choices=3,
        importance_weight=0.5,
        load_weight=0.25,
        balance_weight=0.125,
        z_weight=0.0625,
    )
    yield case(
        "factor", "overflow", "A capacity, with drops.", "overflow_drop", steps=True, choices=2, capacity_factor=0.5
    )
    yield case(
        "priority",
        "overflow",
        "Best tokens first.",
        "priority_order",
        choices=2,
        capacity_factor=0.5,
        batch_priority="max",
    )
    yield case(
        "zero_kernels",
        "tie",
        "As initialised, without noise: every logit is 0.",
        "tie_order",
        noisy=False,
        zero=True,
        sizes=(6, 4, D),
        steps=True,
    )
    yield case("one_choice", "degenerate", "One choice has the gate 1.", "softmax_of_choices", choices=1)
    yield case("all_choices", "degenerate", "All experts, without noise.", "degenerate_size", noisy=False, choices=E)
    yield case("gradient", "gradient", "By tokens, both kernels, noise and experts.", "stop_gradient", "learned_noise")
    kernels = {part: kernel(f"negative/{part}", SMALL.width, SMALL.experts) for part in ("kernel", "noise_kernel")}
    given, many = router_inputs(**kernels), SMALL.experts + 1
    yield from router_faults(name, given, choices=(2, many))
