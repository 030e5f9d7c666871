"""Cases of noisy top-k gating: the noisy logits, the gates, the load loss, and the router `noisy_top_k`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, Noise, call, of_array, single
from moespec.conformance.author.inputs import both, grid, groups_tokens, kernel, logits
from moespec.conformance.author.near_ties import near_router, near_ties
from moespec.conformance.author.routers import LOSSES, balance_scope, evaluation, output_gradient, router_case
from moespec.conformance.author.variant import (
    Route,
    Spec,
    Variant,
    chosen_mask,
    fixed,
    rerouted,
    scaled,
    variant,
    with_loss,
)
from moespec.conformance.format import Tensor
from moespec.spec import ConfigError
from moespec.spec.numerics import normal_cdf, softmax, softplus, stable_order, variance, z_score
from moespec.spec.routing import RouterOutput

NAME, LOGITS, GATES, LOAD = "noisy_top_k", "noisy_top_k_logits", "noisy_top_k_affinity", "noisy_top_k_load_loss"
G, T, E, D = 2, 5, 3, 3
NORMAL = Noise("tokens experts", reach=2.0, step=0.25)

TIED = np.array(
    [[0.5, 0.5, 0.5], [-1.0, 0.25, 0.25], [0.25, -1.0, 0.25], [0.0, -0.0, -2.0], [2.0, 2.0, -1.0], [-3.0, -3.0, -3.0]]
)


def cases() -> Iterator[Definition]:
    yield from _noise()
    yield from _gates()
    yield from _load_loss()
    yield from _router()


def _noise() -> Iterator[Definition]:
    scale = "learned_noise"

    def inputs(case: str, reach: float = 2.0, step: float = 0.25) -> dict[str, Any]:
        noise = logits(f"{GATES}/{case}/noise", reach=2.0, step=0.25).array
        return {
            "logits": logits(f"{GATES}/{case}", reach=2.0, step=0.25),
            "noise_logits": logits(f"{GATES}/{case}/scale", reach=reach, step=step),
            "noise": groups_tokens(noise + 0.125),  # noise 0 could make noisy logits equal
        }

    case = partial(single, GATES, LOGITS)
    purpose = "The scale of the noise is the softplus of the noise logits."
    yield case("noise", "value", purpose, scale, **inputs("noise"))
    purpose = "Noise logits whose exponential overflows float32, and some whose softplus is nearly 0."
    yield case("large_scale", "value", purpose, scale, "large_logits", **inputs("large_scale", 200.0, 4.0))
    purpose = "Without noise the logits are unchanged."
    yield case("absent", "degenerate", purpose, scale, **inputs("absent") | {"noise": None})
    purpose = "By the logits, the noise logits and the noise."
    yield case("gradient_noise", "gradient", purpose, scale, **inputs("gradient_noise"))


def _gates() -> Iterator[Definition]:
    case = of_array(GATES, "noisy_logits", choices=2)
    order, size = "softmax_of_choices", "degenerate_size"
    yield case("values", "value", "Two choices of three.", logits(f"{GATES}/a"), order)
    wide = logits(f"{GATES}/c", reach=240.0, step=4.0).array
    wide[1] = 2.0**31 * (wide[1] - 256)
    purpose = "Logits whose exponential overflows float32, and logits below what a mask is usually filled with."
    yield case("large", "value", purpose, groups_tokens(wide), "large_logits")
    yield case("tied", "tie", "Among equal logits the lower expert is chosen.", both(TIED), "tie_order")
    near = groups_tokens(np.full((G, T, E), 0.5) + grid(f"{GATES}/d", (G, T, E), reach=2.0, step=1.0) / 256)
    yield case("neighbours", "near_tie", "Logits that are neighbours in bfloat16.", near)
    yield from near_ties(GATES, call(GATES, {"noisy_logits": "router_logits"}, choices=2))
    yield case("one_expert", "degenerate", "One expert.", logits(f"{GATES}/g", (G, T, 1)), size, choices=1)
    untied = groups_tokens(logits(f"{GATES}/h", reach=1.0).array + np.arange(E) / 64)
    yield case("gradient", "gradient", "By the noisy logits.", untied, order)


def _load_loss() -> Iterator[Definition]:
    def inputs(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 2.0) -> dict[str, Tensor]:
        clean = logits(f"{LOAD}/{key}", shape, reach=1.0)
        noise = logits(f"{LOAD}/{key}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64  # prevents ties
        scale = logits(f"{LOAD}/{key}/scale", shape, reach=reach, step=0.25)
        return {"logits": clean, "noise_logits": scale, "noisy_logits": groups_tokens(clean.array + noise)}

    def case(name: str, kind: str, purpose: str, given: dict[str, Any], *flags: str, choices: int = 1) -> Definition:
        return single(LOAD, LOAD, name, kind, purpose, *flags, **given, choices=choices)

    other = "threshold_excludes_self"
    yield case("one_choice", "value", "The largest noisy logit of the others.", inputs("a"), other)
    yield case("wide", "value", "Large noise logits.", inputs("d", reach=40.0), "learned_noise", "large_logits")
    tied = {**inputs("e", (G, len(TIED), E)), "noisy_logits": both(TIED)}
    yield case("tied", "tie", "Equal noisy logits at the threshold.", tied, other)
    purpose = "Every expert is chosen: its probability is 1."
    yield case("all_choices", "degenerate", purpose, inputs("i", (1, 4, E)), "degenerate_size", choices=E)
    yield case("one_token", "degenerate", "One token.", inputs("f", (1, 1, E)), "degenerate_size")
    yield case("gradient", "gradient", "By all logits, through the threshold too.", inputs("g"), other, choices=2)
    given = inputs("h")
    low = given["noise_logits"].array.copy()
    low[:, :3, 0], low[:, 1, 1] = (-50.0, -100.0, -400.0), -200.0
    purpose = "By all logits, where the noise of some has a scale whose square is below the normal numbers."
    small = {**given, "noise_logits": groups_tokens(low)}
    yield case("gradient_small_scale", "gradient", purpose, small, "vanishing_scale", choices=1)


def _kernels(key: str, width: int, experts: int) -> dict[str, Tensor]:
    return {part: kernel(f"{key}/{part}", width, experts) for part in ("kernel", "noise_kernel")}


def _router() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, *flags: str, noisy: bool = True, zero: bool = False,
             sizes: tuple[int, int, int] = (T, E, D), **options: Any) -> Definition:  # fmt: skip
        params = _kernels(f"routers/{NAME}/{name}", sizes[2], sizes[1])
        if zero:
            params = {part: Tensor(0 * value.array, value.axes) for part, value in params.items()}
        noise = NORMAL if noisy else None
        return router_case(NAME, name, kind, purpose, *flags, params=params, noise=noise, sizes=sizes, **options)

    room, scale = "room_for_all", "learned_noise"
    yield case("noise", "value", "Training, with both losses.", scale, "generated_code", room)
    purpose = "Three of five experts, other weights, with noise at evaluation."
    yield case("five_experts", "value", purpose, scale, sizes=(6, 5, D), choices=3, train=False, **LOSSES)
    by_sum: dict[str, Any] = {"capacity_factor": 0.5, "multiple_of": 3, "batch_priority": "sum"}
    yield case("factor", "overflow", "A capacity, with drops.", "overflow_drop", "priority_order", **by_sum)
    two: dict[str, Any] = {"slots_per_expert": 2, "batch_priority": "max"}
    yield case("priority", "overflow", "Two slots, best tokens first.", "priority_order", **two)
    purpose = "As initialised, without noise: every logit is 0."
    yield case("zero_kernels", "tie", purpose, "tie_order", noisy=False, zero=True, sizes=(6, 4, D))
    yield case("one_choice", "degenerate", "One choice has the gate 1.", "softmax_of_choices", choices=1)
    yield output_gradient(case, noisy=False, sizes=(4, 3, 3))
    yield near_router(NAME, {"noise_kernel": kernel(f"near/{NAME}/noise", 4, 4)})
    yield balance_scope(NAME, params=_kernels(f"routers/{NAME}/balance_scope", 4, E))
    yield evaluation(NAME, params=_kernels(f"routers/{NAME}/evaluation_factor", 4, E), eval_capacity_factor=0.625)


def _floor(noise_logits: Array) -> Any:
    return softplus(noise_logits) + 0.01


def _noise_with_a_floor(B: Spec, logits: Array, noise_logits: Array, noise: Array) -> Any:
    return logits if noise is None else logits + noise * _floor(noise_logits)


def softmax_before_the_choice(B: Spec, noisy_logits: Array, *, choices: int) -> Array:
    """The gates are the softmax over all experts, with the gates of unchosen experts set to 0."""
    return softmax(noisy_logits, axis=2) * chosen_mask(noisy_logits, choices)


def masked_by_zero(B: Spec, noisy_logits: Array, *, choices: int) -> Array:
    """Before the softmax, unchosen logits become 0 instead of minus infinity."""
    return B.softmax_affinity(noisy_logits * chosen_mask(noisy_logits, choices))


def _loss(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the load loss that uses `load(logits, noise_logits, noisy_logits, choices)` as the load of a group."""

    def changed(B: Spec, logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Any:
        right = B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)
        if choices == logits.shape[2]:
            return right
        loads = [load(*group, choices) for group in zip(logits, noise_logits, noisy_logits, strict=True)]
        return np.mean([variance(found) / np.mean(found) ** 2 for found in loads])

    return changed


def _probability(
    clean: Array, scale: Array, noisy: Array, choices: int, without: Any, divided: Callable[[Any, Any], Any] = z_score
) -> Any:
    """Returns, for each expert, the expected number of tokens whose logit exceeds the K-th largest value of `without(noisy, expert)`."""
    load = np.zeros(clean.shape[1], np.result_type(clean, scale, noisy))
    for expert in range(clean.shape[1]):
        others = without(noisy, expert)
        threshold = np.take_along_axis(others, stable_order(others), 1)[:, choices - 1]
        load[expert] = np.sum(normal_cdf(divided(clean[:, expert] - threshold, scale[:, expert])))
    return load


def _quotient(deviation: Array, scale: Array) -> Any:
    """Returns `deviation / scale`. For complex arguments, computes the derivative by the quotient rule."""
    if not np.iscomplexobj(deviation) and not np.iscomplexobj(scale):
        return deviation / scale
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = deviation.imag / scale.real - deviation.real * scale.imag / (scale.real * scale.real)
    return deviation.real / scale.real + 1j * slope


def _others(noisy: Array, expert: int) -> Any:
    return np.delete(noisy, expert, axis=1)


def noisy_load_of_some_alone(
    B: Spec, logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int
) -> Array:
    """The load loss of noisy top-k raises an error if every expert is chosen."""
    if choices == logits.shape[2]:
        raise ConfigError(f"choices: expected fewer choices than experts, got {choices}")
    return B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)


def noisy_top_k_load_counted_at_evaluation(B: Spec, route: Route) -> RouterOutput:
    """Without noise, the load loss of noisy top-k counts the tokens that chose each expert."""
    output = route.output()
    if route.noise is not None or not route.options.load_weight:
        return output
    chosen = chosen_mask(B.router_logits(route.tokens, route.params["kernel"]), route.options.choices)
    value = np.mean([variance(load) / np.mean(load) ** 2 for load in chosen.sum(axis=1)])
    return with_loss(output, route.options, "load", value)


def noisy_top_k_importance_of_clean_gates(B: Spec, route: Route) -> RouterOutput:
    """The importance loss of noisy top-k uses the softmax of all clean logits."""
    output = route.output()
    if not route.options.importance_weight:
        return output
    clean = B.softmax_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    return with_loss(output, route.options, "importance", B.importance_loss(clean))


def noisy_top_k_priority_of_gates(B: Spec, route: Route) -> RouterOutput:
    """The batch priority of noisy top-k uses the gates, not the noisy logits."""
    output = route.output()
    if route.options.batch_priority == "none":
        return output
    clean, scales = (B.router_logits(route.tokens, route.params[kernel]) for kernel in ("kernel", "noise_kernel"))
    noisy = B.noisy_top_k_logits(clean, scales, route.noise)
    gates = B.noisy_top_k_affinity(noisy, choices=route.options.choices)
    order = B.batch_priority(gates, by=route.options.batch_priority, choices=route.options.choices)
    given = {"choices": route.options.choices, "capacity": route.options.capacity(train=route.train)}
    return rerouted(B, output, B.token_choice(noisy.real, combine_scores=gates, order=order, **given))


def variants() -> Iterator[Variant]:
    yield variant(softmax_before_the_choice, GATES, ledger="NK-1b", who="google-research/vmoe")
    who = "deepseek-ai/DeepSeek-V3 (issue 741, of groups of experts)"
    yield variant(masked_by_zero, "noisy_top_k_affinity", who=who)
    computes = "The scale of the noise is 0.01 more than the softplus, in the logits and in the load."
    replaced = {LOGITS: _noise_with_a_floor, LOAD: _loss(lambda c, n, h, k: _probability(c, _floor(n), h, k, _others))}
    yield Variant("noise_scale_with_a_floor", computes, replaced, "NK-2b", "tensorflow/tensor2tensor")
    computes = "The threshold of the load of noisy top-k is the K-th largest noisy logit, the expert itself included."
    replaced = {LOAD: _loss(lambda c, n, h, k: _probability(c, softplus(n), h, k, lambda h, e: h))}
    yield Variant("noisy_threshold_with_the_expert", computes, replaced, "AL-2b")
    computes = "The variance of the load of noisy top-k is the unbiased one, divided by E - 1."
    unbiased: dict[str, Any] = {LOAD: lambda logits, **_: logits.shape[2] / (logits.shape[2] - 1)}
    yield scaled("noisy_load_unbiased", computes, "AL-1b", **unbiased)
    computes = "The load of noisy top-k divides by the scale of the noise however small that is: the gradient overflows to NaN."
    replaced = {LOAD: _loss(lambda c, n, h, k: _probability(c, softplus(n), h, k, _others, _quotient))}
    yield Variant("noisy_load_quotient", computes, replaced, "NK-6b")
    yield variant(noisy_load_of_some_alone, LOAD, ledger="NK-7b")
    computes = "The experts of noisy top-k have a capacity factor of 1."
    yield fixed("noisy_top_k_with_a_capacity", computes, NAME, "NK-3b", capacity_factor=1.0)
    yield variant(noisy_top_k_priority_of_gates, NAME, ledger="BP-4b")
    yield variant(noisy_top_k_importance_of_clean_gates, NAME, ledger="NK-4b", who="google-research/vmoe")
    yield variant(noisy_top_k_load_counted_at_evaluation, NAME, ledger="NK-5b", who="tensorflow/tensor2tensor")
