"""Cases of DSelect-k: its gate by parts, and the router.

Codes lie on a grid of sixteenths, some of them exactly at an end of the step; for the router tokens are drawn again
until no code is near one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import (
    SHAPE,
    SMALL,
    array_faults,
    fault,
    option,
    router_config,
    size_faults,
    with_value,
)
from moespec.conformance.cases.inputs import experts, scores, tokens
from moespec.conformance.cases.margins import clear_tokens
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor
from moespec.spec.dselect_k import code_bits

__all__ = ["cases"]

G, T, K, D = 2, 4, 2, 3
ROUTER_STAGES = ("codes", "selectors", "gate", "routing", "layer", "route")


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _step()
    yield from _gate()
    yield from _losses()
    yield from _router()
    yield from _gate_faults()
    yield from _router_faults()


def codes(key: str, experts: int, choices: int = K, reach: float = 0.5) -> Tensor:
    """Codes of a gate by token."""
    values = grid(key, (G, T, choices, code_bits(experts)), reach=reach, step=0.0625)
    return tensor(values, "groups tokens choices bits")


def mixture(key: str, choices: int = K) -> Tensor:
    """Logits of a gate by token."""
    return tensor(grid(f"{key}/logits", (G, T, choices)), "groups tokens choices")


def _step() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Any, gamma: float = 1.0, **options: Any) -> Definition:
        inputs = {"z": tensor(values, "rows n")}
        return Definition(
            "dselect_k_gate", name, kind, purpose, inputs, {"gamma": gamma}, ("step",), ("smooth_step",), **options
        )

    z = grid("dselect/step", (3, 6), reach=0.75, step=0.0625)
    yield case("step", "value", "The cubic inside, 0 and 1 outside.", z)
    yield case("step_narrow", "value", "Half as wide.", z, 0.5)
    yield case("step_wide", "value", "Four times as wide.", 4 * z, 4.0)
    ends = [[-0.5, 0.5, 0.0], [-0.498046875, 0.498046875, -0.001953125]]
    yield case("step_ends", "tie", "At both ends of the step, just inside them, and in the middle.", ends)
    yield case("step_gradient", "gradient", "The derivative, 0 outside.", z, 2.0, gradient=("step", ("z",)))


def _gate() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, values: Tensor, count: int, flags: tuple[str, ...], gamma: float = 1.0
    ) -> Definition:
        inputs = {"codes": values, "logits": mixture(f"dselect/{name}", values.array.shape[2])}
        config = {"experts": count, "gamma": gamma}
        stages = ("selectors", "gate", "routing")
        return Definition("dselect_k_gate", name, kind, purpose, inputs, config, stages, flags)

    order, holes = ("code_order",), ("unreachable_codes",)
    yield case("four_experts", "value", "A power of two: the gate sums to 1.", codes("dselect/a", 4), 4, order)
    yield case("eight_experts", "value", "Three digits.", codes("dselect/b", 8), 8, order)
    yield case("five_experts", "value", "Three codes of eight have no expert.", codes("dselect/c", 5), 5, holes)
    yield case("three_choices", "value", "Three selectors.", codes("dselect/d", 6, 3), 6, holes)
    yield case("wide", "value", "A wider step.", codes("dselect/e", 4, reach=1.0), 4, ("smooth_step",), 2.0)
    yield case(
        "same_expert", "value", "Selectors that pick the same expert add their weights.",
        tensor(np.tile([0.75, -0.75], (G, T, K, 1)), "groups tokens choices bits"), 4, ("unused_expert",),
    )  # fmt: skip
    yield case(
        "ends", "tie", "Codes at the ends of the step: an expert that gets exactly 0 is not used.",
        tensor(0.5 * np.sign(grid("dselect/f", (G, T, K, 2)) + 0.0625), "groups tokens choices bits"), 4,
        ("unused_expert",),
    )  # fmt: skip
    yield case(
        "one_choice", "degenerate", "One selector: its logit does not matter.", codes("dselect/g", 4, 1), 4,
        ("degenerate_size",),
    )  # fmt: skip
    yield case("two_experts", "degenerate", "One digit.", codes("dselect/h", 2), 2, ("degenerate_size",))
    static = {
        "static_codes": tensor([[0.25, -0.125], [-0.3125, 0.625]], "choices bits"),
        "static_logits": tensor([0.0, 1.0], "choices"),
    }
    yield Definition(
        "dselect_k_gate", "static", "value", "A static gate has neither groups nor tokens.", static,
        {"experts": 4, "gamma": 1.0}, ("selectors", "gate", "losses"), order,
    )  # fmt: skip

    def gradient(name: str, purpose: str, stage: str, output: str, inputs: dict[str, Tensor], **config: Any) -> Any:
        wrt = (output, tuple(inputs))
        return Definition("dselect_k_gate", name, "gradient", purpose, inputs, config, (stage,), (), wrt)

    yield gradient(
        "gradient_codes", "By codes; those outside the step are frozen.", "selectors", "selectors",
        {"codes": codes("dselect/i", 5, reach=0.75)}, experts=5, gamma=1.0,
    )  # fmt: skip
    shares = tensor(
        grid("dselect/j", (G, T, K, 3), reach=0.25, step=0.03125, centre=0.28125), "groups tokens choices experts"
    )
    yield gradient(
        "gradient_mixture", "By selectors and logits.", "gate", "gate",
        {"selectors": shares, "logits": mixture("dselect/j")},
    )  # fmt: skip
    yield gradient(
        "gradient_static_codes", "By the codes of a static gate.", "selectors", "static_selectors",
        {"static_codes": static["static_codes"]}, experts=3, gamma=1.0,
    )  # fmt: skip
    yield gradient(
        "gradient_static_mixture", "By the selectors and the logits of a static gate.", "gate", "static_gate",
        {"static_selectors": Tensor(shares.array[0, 0], shares.axes[2:]), "static_logits": static["static_logits"]},
    )  # fmt: skip
    gate = tensor(grid("dselect/k", (G, T, 3), reach=0.25, step=0.03125, centre=0.28125), "groups tokens experts")
    yield gradient("gradient_routing", "The weight of a slot is the gate.", "routing", "weights", {"gate": gate})
    yield gradient("gradient_entropy", "By selectors.", "losses", "losses/selector_entropy", {"selectors": shares})
    yield gradient("gradient_reachability", "By selectors.", "losses", "losses/reachability", {"selectors": shares})


def _losses() -> Iterator[Definition]:
    def case(name: str, purpose: str, values: Tensor, count: int) -> Definition:
        config = {"experts": count, "gamma": 1.0}
        return Definition(
            "dselect_k_gate", name, "value", purpose, {"codes": values}, config, ("selectors", "losses"),
            ("selector_losses",),
        )  # fmt: skip

    yield case("losses", "Entropy of each selector, summed over tokens.", codes("dselect/l", 4), 4)
    inside = codes("dselect/m", 6, reach=0.4375)
    yield case("losses_unreachable", "Some mass is on codes without an expert.", inside, 6)


def _router() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        flags: tuple[str, ...] = (),
        *,
        count: int = 4,
        choices: int = K,
        sizes: tuple[int, int] = (T, D),
        steps: bool = False,
        reach: float = 0.5,
        step: float = 0.125,
        **fields: Any,
    ) -> Definition:
        t, d = sizes
        key = f"routers/dselect_k/{name}"
        static = fields.get("selector_gate") == "static"
        config = {"router": {"tokens": t, "experts": count, "width": d, "choices": choices, **fields}}
        columns = choices * (code_bits(count) + 1)
        centre = 0.0625 if static and kind != "tie" else 0.0  # no code at an end of the step, but where it is meant
        router = {
            "router/bias": tensor(grid(f"{key}/bias", (columns,), reach=reach, step=step, centre=centre), "columns")
        }
        if not static:
            kernel = grid(f"{key}/kernel", (d, columns), reach=0.375, step=0.0625)
            router["router/kernel"] = tensor(kernel, "width columns")
        far: dict[str, Any] = {"reach": 1.5, "tries": 200, "enough": np.inf}
        drawn = np.stack([clear_tokens("dselect_k", f"{key}/{g}", config, router, **far)[0] for g in range(G)])
        inputs = {"tokens": tensor(drawn, "groups tokens width"), **router, **experts(key, count, d, 3, d)}
        gradient = ("output", tuple(inputs)) if kind == "gradient" else None
        stages = ROUTER_STAGES if steps else ("route",)
        exact = kind == "tie"
        return Definition("dselect_k", name, kind, purpose, inputs, config, stages, flags, gradient, exact_ties=exact)

    yield case("values", "value", "Four experts.", ("generated_code", "code_order"), steps=True)
    yield case(
        "five_experts",
        "value",
        "The mass on codes without an expert is lost.",
        ("unreachable_codes",),
        count=5,
    )
    yield case(
        "losses", "value", "Both losses, weighted.", ("selector_losses",), count=6,
        selector_entropy_weight=0.25, reachability_weight=0.5,
    )  # fmt: skip
    yield case(
        "losses_power_of_two", "value", "No code is without an expert: there is no reachability to count.",
        ("selector_losses",), selector_entropy_weight=0.25, reachability_weight=0.5,
    )  # fmt: skip
    static: dict[str, Any] = {"selector_gate": "static"}
    yield case("static", "value", "The same gate for every token.", ("unused_expert",), reach=0.75, **static)
    yield case(
        "static_losses", "value", "The losses of a static gate count once, not once a token.", ("selector_losses",),
        count=3, selector_entropy_weight=0.25, reachability_weight=0.5, reach=0.375, **static,
    )  # fmt: skip
    yield case(
        "static_ends",
        "tie",
        "Codes exactly at the ends of the step.",
        ("unused_expert",),
        reach=0.5,
        step=0.5,
        **static,
    )
    yield case("one_expert", "degenerate", "One expert gets everything.", ("degenerate_size",), count=1)
    yield case("one_token", "degenerate", "One token.", ("degenerate_size",), sizes=(1, D))
    yield case("gradient", "gradient", "By tokens, parameters and expert weights.", ("smooth_step",), count=5)
    yield case(
        "gradient_static", "gradient", "By the parameters of a static gate.", ("smooth_step",), count=3, reach=0.375,
        **static,
    )  # fmt: skip


def _gate_faults() -> Iterator[Definition]:
    name = "dselect_k_gate"
    stepped = {"z": tensor(grid("negative/z", (1, 4), reach=0.5), "rows n")}
    yield from array_faults(name, "step", "z", stepped, {"gamma": 1.0}, "step_", "rank")  # any shape will do
    yield option(name, "step", "step_gamma", "gamma", stepped, {"gamma": 1.0}, gamma=0.0)
    g, t, e, _ = SMALL
    bits = tensor(grid("negative/codes", (g, 2, 2, 3), reach=0.5, step=0.0625), "groups tokens choices bits")
    coded, config = {"codes": bits}, {"experts": 8, "gamma": 1.0}
    yield from array_faults(name, "selectors", "codes", coded, config, "codes_")
    yield option(name, "selectors", "gamma", "gamma", coded, config, gamma=-1.0)
    yield option(name, "selectors", "no_expert", "experts", coded, config, experts=0)
    shares = tensor(grid("negative/shares", (g, t, 2, e), reach=0.25, centre=0.5), "groups tokens choices experts")
    mixed = {"selectors": shares, "logits": tensor(grid("negative/mixture", (g, t, 2)), "groups tokens choices")}
    yield from array_faults(name, "gate", "selectors", mixed, {}, "selectors_", "rank")
    yield from array_faults(name, "gate", "logits", mixed, {}, "logits_")
    selectors = {"selectors": shares}
    yield from array_faults(name, "losses", "selectors", selectors, {}, "losses_")
    lost = tensor(np.where(np.arange(2)[:, None] == 0, 0.0, shares.array), "groups tokens choices experts")
    yield fault(
        name, "losses", "losses_lost", "ContractError", "selectors", selectors, {}, wrong_inputs={"selectors": lost},
        purpose="A selector has no mass on any expert.",
    )  # fmt: skip
    yield from array_faults(name, "routing", "gate", {"gate": scores("negative/scores", SHAPE)}, {}, "routing_")


def _router_faults() -> Iterator[Definition]:
    given = {
        "tokens": tokens("negative/tokens", (SMALL.groups, SMALL.tokens, SMALL.width)),
        "router/bias": tensor(grid("negative/bias", (8,), reach=0.25), "columns"),
    }
    fields: dict[str, Any] = {"selector_gate": "static", "choices": 2, "selector_gamma": 1.0}
    config = {"router": router_config(experts=7, **fields)}
    for field, wrong in (("selector_gate", "image"), ("choices", 0), ("selector_gamma", 0.0)):
        argument = "gamma" if field == "selector_gamma" else field
        changed = {"router": {**config["router"], field: wrong}}
        yield option("dselect_k", "route", field, argument, given, config, **changed)
    fewer = {"router/bias": tensor(grid("negative/bias/few", (7,), reach=0.25), "columns")}
    yield fault("dselect_k", "route", "columns", "ShapeError", "bias", given, config, wrong_inputs=fewer)
    # A NaN in it may be found in the codes that are made of it.
    yield from array_faults("dselect_k", "route", "router/bias", given, config, "bias_", "nan")
    yield from size_faults("dselect_k", "route", given, config, tokens=1)
    gate = {**given, "router/kernel": tensor(grid("negative/columns", (SMALL.width, 8), reach=0.25), "width columns")}
    by_token = {"router": {**config["router"], "selector_gate": "token"}}
    lost = {"tokens": with_value(given["tokens"], np.nan)}
    yield fault("dselect_k", "route", "tokens_nan", "ContractError", "tokens", gate, by_token, wrong_inputs=lost)
