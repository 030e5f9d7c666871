"""Cases of the router `hierarchical_top_k`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, Noise, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.routers import output_gradient, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, kept, rerouted, variant
from moespec.conformance.cases.hierarchical_gating import gates_within
from moespec.conformance.format import Tensor
from moespec.spec.routing import RouterOutput

NAME, D = "hierarchical_top_k", 2


def _kernels(key: str, width: int, columns: int, *, zero: bool = False) -> dict[str, Tensor]:
    kernels = {part: grid(f"{key}/{part}", (width, columns), reach=1.0) for part in ("kernel", "noise_kernel")}
    return {part: tensor(0 * values if zero else values, "width columns") for part, values in kernels.items()}


def cases() -> Iterator[Definition]:

    def case(name: str, kind: str, purpose: str, *flags: str, columns: int, noisy: bool = True, experts: int = 6,
             tokens: int = 4, zero: bool = False, **options: Any) -> Definition:  # fmt: skip
        defaults: dict[str, Any] = {
            "params": _kernels(f"routers/{NAME}/{name}", D, columns, zero=zero),
            "noise": Noise("tokens columns", reach=2.0, step=0.25) if noisy else None,
            "sizes": (tokens, experts, D),
            "groups": 1,
        }
        return router_case(NAME, name, kind, purpose, *flags, **{**defaults, **options})

    scale = "learned_noise"
    losses: dict[str, Any] = {"importance_weight": 0.5, "load_weight": 0.25, "branches": 3}
    purpose = "Two of three branches, and both experts of each; noise, with other weights."
    yield case(
        "noise", "value", purpose, "two_levels", scale, "generated_code", columns=9, tokens=3, train=False, **losses
    )
    few: dict[str, Any] = {"experts": 4, "capacity_factor": 0.5, "multiple_of": 3}
    purpose = "All four experts of a token, with a capacity that is a multiple of 3."
    yield case("factor", "overflow", purpose, "overflow_drop", "capacity_rounding", columns=6, **few)
    one: dict[str, Any] = {"choices_per_level": 1, "noisy": False, "eval_capacity_factor": 0.75, "rounding": "round"}
    purpose = "One branch, and one of its experts, without noise and load loss; a capacity of evaluation, rounded to the nearest."
    flags = ("evaluation_capacity", "overflow_drop")
    yield case("evaluation_factor", "overflow", purpose, *flags, columns=6, experts=4, tokens=6, **one)
    purpose = "Every logit is equal: the first branches, and the first experts of each."
    yield case("zero_kernels", "tie", purpose, "tie_order", columns=6, experts=4, tokens=3, zero=True, noisy=False)
    purpose = "By tokens, both kernels, noise and experts, with two slots."
    yield case("gradient_losses", "gradient", purpose, "stop_gradient", scale, columns=8, slots_per_expert=2)
    yield output_gradient(case, columns=8, noisy=False)


def _noisy(B: Spec, params: Any, tokens: Array, noise: Array) -> Any:
    clean, scales = (B.router_logits(tokens, params[kernel]) for kernel in ("kernel", "noise_kernel"))
    return B.noisy_top_k_logits(clean, scales, noise)


def hierarchy_levels_balanced_apart(B: Spec, route: Route) -> RouterOutput:
    """The importance loss is the loss over the branches plus the mean, over the branches, of the loss over the experts of a branch."""
    output = route.output()
    if not route.options.importance_weight:
        return output
    branches, size = route.options.levels
    noisy, choices = _noisy(B, route.params, route.tokens, route.noise), route.options.choices_per_level
    primary = B.noisy_top_k_affinity(noisy[..., :branches], choices=min(choices, branches))
    inner = np.stack([gates_within(group, branches, choices) for group in noisy])
    each = [B.importance_loss(inner[..., i * size : (i + 1) * size] + 1e-30) for i in range(branches)]
    value = B.importance_loss(primary) + np.mean(each)
    losses = {**output.losses, "importance": route.options.importance_weight * value}
    return output._replace(losses=losses, metrics={**output.metrics, "importance_loss": value})


def hierarchy_branch_capacity(B: Spec, route: Route) -> RouterOutput:
    """A branch takes at most an equal share of the choices."""
    output = route.output()
    branches, size = route.options.levels
    noisy, choices = _noisy(B, route.params, route.tokens, route.noise), min(route.options.choices_per_level, branches)
    capacity = max(1, choices * route.options.tokens // branches)
    reached = (
        B.token_choice(noisy[..., :branches].real, choices=choices, capacity=capacity).dense().dispatch.sum(axis=3)
    )
    has_room = np.concatenate(
        [np.repeat(reached, size, axis=2), np.zeros((len(route.tokens), 1, route.options.experts))], axis=1
    )
    stays = np.take_along_axis(has_room.swapaxes(1, 2), output.routing.token, axis=2) > 0
    return rerouted(B, output, kept(output.routing, stays))


def variants() -> Iterator[Variant]:
    yield variant(hierarchy_levels_balanced_apart, NAME, ledger="HM-2b", who="tensorflow/mesh")
    yield variant(hierarchy_branch_capacity, NAME, ledger="HM-3b", who="tensorflow/mesh")
