"""Cases of DSelect-k: the codes, the step, the selectors, the gate, its routing and losses, and the router `dselect_k`.

Codes are multiples of 1/16, and some lie exactly at an end of the smooth step. For the router, tokens are drawn again
until no code is near an end of the step.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, Draws, call, composed, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.near_ties import near_codes
from moespec.conformance.author.routers import router_case
from moespec.conformance.author.variant import Route, Spec, Variant, fixed, scaled, variant
from moespec.conformance.format import Stage, Tensor
from moespec.spec.algorithms.dselect_k_codes import code_bits
from moespec.spec.routing import RouterOutput

NAME, GATE = "dselect_k", "dselect_k_gate"
G, T, K, D = 2, 4, 2, 3
CODES, LOGITS, MIXED = "groups tokens choices bits", "groups tokens choices", "groups tokens choices experts"


def cases() -> Iterator[Definition]:
    yield from _step()
    yield from _gates()
    yield from _gradients()
    yield from _routers()


def codes(key: str, experts: int, choices: int = K, reach: float = 0.5) -> Tensor:
    """Draws the codes of a gate that depends on the token."""
    return tensor(grid(key, (G, T, choices, code_bits(experts)), reach=reach, step=0.0625), CODES)


def mixture(key: str, choices: int = K) -> Tensor:
    """Draws the logits of a gate that depends on the token."""
    return tensor(grid(f"{key}/logits", (G, T, choices)), LOGITS)


def _step() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Any, gamma: float = 1.0) -> Definition:
        z = tensor(values, "rows n")
        return single(GATE, "smooth_step", name, kind, purpose, "smooth_step", z=z, gamma=gamma)

    z = grid("dselect/step", (3, 6), reach=0.75, step=0.0625)
    yield case("step", "value", "The cubic inside, 0 and 1 outside.", z)
    yield case("step_narrow", "value", "Half as wide.", z, 0.5)
    ends = [[-0.5, 0.5, 0.0], [-0.498046875, 0.498046875, -0.001953125]]
    yield case("step_ends", "tie", "At both ends of the step, just inside them, and in the middle.", ends)
    yield case("step_gradient", "gradient", "The derivative, 0 outside.", z, 2.0)


SELECTORS = {"selectors": "dselect_k_selectors"}


def _selectors(read: str, experts: int, gamma: float = 1.0) -> Stage:
    return call("dselect_k_selectors", {"codes": read}, experts=experts, gamma=gamma)


def _losses(read: str = "dselect_k_selectors") -> tuple[Stage, ...]:
    return tuple(call(loss, {"selectors": read}) for loss in ("dselect_k_entropy", "dselect_k_reachability"))


STATIC = {
    "static_codes": tensor([[0.25, -0.125], [-0.3125, 0.625]], "choices bits"),
    "static_logits": tensor([0.0, 1.0], "choices"),
}


def _gate(name: str, kind: str, purpose: str, values: Tensor, count: int, flag: str, gamma: float = 1.0) -> Definition:
    inputs = {"codes": values, "logits": mixture(f"dselect/{name}", values.array.shape[2])}
    gate = call(GATE, {**SELECTORS, "logits": "logits"})
    stages = (_selectors("codes", count, gamma), gate, call("dselect_k_routing", {"gate": GATE}))
    return composed(GATE, name, kind, purpose, flag, inputs=inputs, stages=stages)


ORDER, HOLES, SIZE, IDLE = "code_order", "unreachable_codes", "degenerate_size", "unused_expert"


def _gates() -> Iterator[Definition]:
    yield _gate("five_experts", "value", "Three codes of eight have no expert.", codes("dselect/c", 5), 5, HOLES)
    same = tensor(np.tile([0.75, -0.75], (G, T, K, 1)), CODES)
    yield _gate("same_expert", "value", "Selectors that pick the same expert add their weights.", same, 4, IDLE)
    ends = tensor(0.5 * np.sign(grid("dselect/f", (G, T, K, 2)) + 0.0625), CODES)
    purpose = "Codes at the ends of the step: an expert that gets exactly 0 is not used."
    yield _gate("ends", "tie", purpose, ends, 4, IDLE)
    small = {"gate": tensor([[[1.0, 2.0**-60, 0.0], [2.0**-24, 1.0, 2.0**-8]]], "groups tokens experts")}
    stages = (call("dselect_k_routing", {"gate": "gate"}),)
    purpose = "A token is in an expert however small its gate is, unless it is 0."
    yield composed(GATE, "small_gates", "value", purpose, IDLE, inputs=small, stages=stages)
    near = codes("dselect/h", 2)
    near.array[:, ::2] = 255 / 512 * np.sign(near.array[:, ::2] + 0.0625)
    purpose = "One digit, for some tokens just inside the ends of the step."
    yield _gate("two_experts", "degenerate", purpose, near, 2, SIZE)
    yield from _near_and_static()


def _near_and_static() -> Iterator[Definition]:
    """Returns cases with codes near the ends of the smooth step, a case with a static gate, and cases of the losses."""
    made = call(GATE, {**SELECTORS, "logits": "dselect_k_codes/logits"})
    routing = call("dselect_k_routing", {"gate": GATE})
    yield from near_codes(GATE, _selectors("dselect_k_codes/codes", 4), made, routing)

    gate = call(GATE, {**SELECTORS, "logits": "static_logits"})
    static = (_selectors("static_codes", 4), gate, *_losses())
    purpose = "A static gate has neither groups nor tokens."
    yield composed(GATE, "static", "value", purpose, ORDER, inputs=STATIC, stages=static)

    def losses(name: str, purpose: str, values: Tensor, count: int) -> Definition:
        stages = (_selectors("codes", count), *_losses())
        flag = "selector_losses"
        return composed(GATE, name, "value", purpose, flag, inputs={"codes": values}, stages=stages)

    yield losses("losses", "Entropy of each selector, summed over tokens.", codes("dselect/l", 4), 4)
    lost = tensor(np.tile([[0.75, 0.75, 0.75], [-0.25, 0.125, 0.375]], (1, 2, 1, 1)), CODES)
    yield losses("losses_lost", "A selector has no mass on any expert.", lost, 5)


def _gradients() -> Iterator[Definition]:
    def case(name: str, purpose: str, inputs: dict[str, Tensor], *stages: Stage, of: str = "") -> Definition:
        return composed(GATE, f"gradient_{name}", "gradient", purpose, inputs=inputs, stages=stages, of=of)

    purpose = "By codes; those outside the step are frozen."
    yield case("codes", purpose, {"codes": codes("dselect/i", 5, reach=0.75)}, _selectors("codes", 5))
    quarter: dict[str, float] = {"reach": 0.25, "step": 0.03125, "centre": 0.28125}
    mass = tensor(grid("dselect/j", (G, T, K, 3), **quarter), MIXED)
    inputs = {"selectors": mass, "logits": mixture("dselect/j")}
    yield case("mixture", "By selectors and logits.", inputs, call(GATE, {name: name for name in inputs}))
    bits = {"static_codes": STATIC["static_codes"]}
    yield case("static_codes", "By the codes of a static gate.", bits, _selectors("static_codes", 3))
    inputs = {"static_selectors": Tensor(mass.array[0, 0], mass.axes[2:]), "static_logits": STATIC["static_logits"]}
    gate = call(GATE, {"selectors": "static_selectors", "logits": "static_logits"})
    yield case("static_mixture", "By the selectors and the logits of a static gate.", inputs, gate)
    shown = {"gate": tensor(grid("dselect/k", (G, T, 3), **quarter), "groups tokens experts")}
    yield case("routing", "The weight of a slot is the gate.", shown, call("dselect_k_routing", {"gate": "gate"}))
    for loss in ("entropy", "reachability"):
        of = f"dselect_k_{loss}/loss"
        yield case(loss, "By selectors.", {"selectors": mass}, *_losses("selectors"), of=of)


def _router(
    name: str, kind: str, purpose: str, *flags: str, count: int = 4, tokens: int = T, reach: float = 0.5,
    step: float = 0.125, choices: int = K, train: bool = True, **options: Any,
) -> Definition:  # fmt: skip
    key = f"routers/{NAME}/{name}"
    static = options.get("selector_gate") == "static"
    columns = choices * (code_bits(count) + 1)
    centre = 0.0625 if static and kind != "tie" else 0.0  # only the tie case has codes at an end of the step
    bias = grid(f"{key}/bias", (columns,), reach=reach, step=step, centre=centre)
    params = {"bias": tensor(bias, "columns")}
    if not static:
        kernel = grid(f"{key}/kernel", (D, columns), reach=0.375, step=0.0625)
        params["kernel"] = tensor(kernel, "width columns")
    return router_case(
        NAME, name, kind, purpose, *flags, params=params, sizes=(tokens, count, D), train=train,
        draws=Draws(1.5, 1 if static else 200, np.inf), exact_ties=kind == "tie", choices=choices, **options,
    )  # fmt: skip


def _routers() -> Iterator[Definition]:
    step, loss, idle, size = "smooth_step", "selector_losses", "unused_expert", "degenerate_size"
    static: dict[str, Any] = {"selector_gate": "static"}
    weights: dict[str, Any] = {"selector_entropy_weight": 0.25, "reachability_weight": 0.5}
    yield _router("values", "value", "Four experts.", "generated_code", "code_order")
    purpose = "The mass on codes without an expert is lost."
    yield _router("five_experts", "value", purpose, "unreachable_codes", count=5, selector_gamma=2.0)
    yield _router("losses", "value", "Both losses, weighted.", loss, count=6, **weights)
    purpose = "The losses are there at evaluation, too."
    yield _router("evaluation", "value", purpose, loss, count=3, tokens=1, train=False)
    yield _router("static", "value", "The same gate for every token.", idle, reach=0.75, **static)
    purpose = "The losses of a static gate count once, not once a token."
    yield _router("static_losses", "value", purpose, loss, count=3, reach=0.375, **weights, **static)
    yield _router("static_ends", "tie", "Codes exactly at the ends of the step.", idle, step=0.5, **static)
    yield _router("one_expert", "degenerate", "One expert gets everything.", size, count=1)
    yield _router("one_token", "degenerate", "One token, three selectors.", size, tokens=1, choices=3)
    yield _router("gradient", "gradient", "By tokens, parameters and expert weights.", step, count=5)
    purpose = "By the parameters of a static gate."
    yield _router("gradient_static", "gradient", purpose, step, count=3, reach=0.375, **static)


# Variants. The shape of codes is (..., choices, bits), and the shape of selectors is (..., choices, experts).


def _of_each_token(selectors: Array) -> float:
    """Returns 1 / (tokens per group). A static gate counts as one token."""
    return 1 / selectors.shape[1] if selectors.ndim == 4 else 1.0


def _over_their_sum(values: Array) -> Any:
    """Divides values by their sum over the experts if the sum is positive."""
    total = values.sum(axis=-1, keepdims=True)
    return values / np.where(total.real > 0, total, 1)


def step_is_linear(B: Spec, z: Array, *, gamma: float = 1.0) -> Any:
    """The step function is linear between the two ends of the step."""
    t = z / gamma + 0.5
    return np.where(t.real <= 0, 0, np.where(t.real >= 1, 1, t))


def experts_counted_from_one(B: Spec, codes: Array, *, experts: int, gamma: float = 1.0) -> Array:
    """Expert i, counted from 0, has the m-bit code of (i + 1) mod 2^m."""
    selectors = B.dselect_k_selectors(codes, experts=experts, gamma=gamma)
    every_code = B.dselect_k_selectors(codes, experts=2 ** code_bits(experts), gamma=gamma)
    return np.roll(every_code, -1, axis=-1)[..., : selectors.shape[-1]]


def selectors_renormalised(B: Spec, codes: Array, **options: Any) -> Array:
    """Each selector is divided by its sum over the experts."""
    return _over_their_sum(B.dselect_k_selectors(codes, **options))


def gate_renormalised(B: Spec, selectors: Array, logits: Array) -> Array:
    """The gate is divided by its sum over the experts, so no mass is lost to codes without an expert."""
    return _over_their_sum(B.dselect_k_gate(selectors, logits))


def every_expert_is_used(B: Spec, gate: Array, **like: Any) -> Any:
    """A token takes a slot in every expert, even if the expert's gate is 0."""
    routing = B.dselect_k_routing(gate, **like)
    own = np.broadcast_to(np.arange(routing.tokens, dtype=np.int32), routing.token.shape)
    return routing._replace(token=own)


def reachability_infinite(B: Spec, selectors: Array) -> Array:
    """The reachability is infinite if a selector has no mass on any expert."""
    lost = (np.sum(np.asarray(selectors).real, axis=-1) == 0).any()
    return np.float64(np.inf) if lost else B.dselect_k_reachability(selectors)


def static_losses_for_every_token(B: Spec, route: Route) -> RouterOutput:
    """The losses of a static gate are multiplied by the number of tokens per group."""
    output = route.output()
    if route.options.selector_gate != "static":
        return output
    return output._replace(losses={name: route.options.tokens * loss for name, loss in output.losses.items()})


def dselect_k_losses_in_training(B: Spec, route: Route) -> RouterOutput:
    """DSelect-k computes losses only in training."""
    output = route.output()
    return output if route.train else output._replace(losses={})


def variants() -> Iterator[Variant]:
    yield variant(step_is_linear, "smooth_step")
    computes = "The first number of a code is the least significant digit of the expert."
    yield fixed(
        "least_significant_digit_first", computes, "dselect_k_selectors", "DK-1b", codes=lambda codes: codes[..., ::-1]
    )
    yield variant(experts_counted_from_one, "dselect_k_selectors", ledger="DK-1b")
    yield variant(selectors_renormalised, "dselect_k_selectors", ledger="DK-2b")
    yield variant(gate_renormalised, GATE, ledger="DK-2b")
    yield variant(every_expert_is_used, "dselect_k_routing")
    computes = "The entropy of the selectors is averaged over tokens."
    yield scaled("entropy_averaged", computes, "DK-3b", dselect_k_entropy=_of_each_token)
    computes = "The reachability is averaged over tokens."
    yield scaled("reachability_averaged", computes, "DK-3b", dselect_k_reachability=_of_each_token)
    who = "google-research/google-research"
    yield variant(reachability_infinite, "dselect_k_reachability", ledger="DK-6b", who=who)
    computes = "The losses of DSelect-k have the weights 0 and 1."
    weights: dict[str, Any] = {"selector_entropy_weight": 0.0, "reachability_weight": 1.0}
    yield fixed("dselect_k_weights_of_the_public_gate", computes, NAME, "DK-4b", **weights)
    yield variant(dselect_k_losses_in_training, NAME, ledger="DK-5b")
    yield variant(static_losses_for_every_token, NAME, ledger="DK-3b")
