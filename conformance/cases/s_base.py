"""Cases of the sigmoid affinity and the router `s_base`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import (
    CHANGED,
    LOSSES,
    NORMAL,
    balance_scope,
    evaluation,
    kernel_case,
    logit_options,
    replay,
)
from moespec.conformance.author.variant import Route, Spec, Variant, every, fixed
from moespec.spec.routing import RouterOutput

NAME = "s_base"
T, E, D = 5, 3, 3

case = partial(kernel_case, NAME, sizes=(T, E, D), train=True)


def cases() -> Iterator[Definition]:
    plan, room, size, constant = "plan_in_training", "room_for_all", "degenerate_size", "stop_gradient"
    sigmoid: dict[str, Any] = {"combine_with": "sigmoid"}
    yield case("training", "value", "The plan chooses; there is room for every token.", plan, room)
    yield case("evaluation", "value", "The softmax chooses.", plan, room, "generated_code", train=False)
    yield case("sigmoid", "value", "The gate is a sigmoid.", "combine_scores", slots_per_expert=3, **sigmoid)
    purpose = "At evaluation, too, and with noise."
    noisy: dict[str, Any] = {"noise": NORMAL, "noise_multiplier": 0.5}
    yield case(
        "sigmoid_evaluation", "value", purpose, "combine_scores", "noise_inside", train=False, **sigmoid, **noisy
    )
    purpose = "Noise in training: the plan, the gate and the losses see what they should; the best tokens come first."
    losses = LOSSES | CHANGED
    yield case("noise", "value", purpose, "noise_inside", "priority_order", batch_priority="max", **noisy, **losses)
    purpose = "One iteration of the plan; one gate divided by its sum is 1."
    few: dict[str, Any] = {"sizes": (10, E, D), "sinkhorn_iterations": 1, "normalize_selected": True}
    yield case("few_iterations", "value", purpose, "column_update_first", "renormalised", **few)
    purpose = "Two slots of an expert become three, nine in all for ten tokens."
    nine: dict[str, Any] = {"sizes": (10, E, D), "capacity_factor": 0.5, "multiple_of": 3}
    yield case("factor", "overflow", purpose, "overflow_drop", **nine)
    zero: dict[str, Any] = {"zero": True, "train": False, "sizes": (6, 4, D)}
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", **zero)
    yield case("one_expert", "degenerate", "One expert.", size, train=False, sizes=(T, 1, D))
    yield case("one_token", "degenerate", "One token.", size, train=False, sizes=(1, E, D))
    yield case("gradient", "gradient", "Through the gate alone.", constant)
    yield near_router(NAME, train=True)
    yield replay(case, "plan_in_training")
    yield evaluation(NAME)
    yield logit_options(NAME)
    yield balance_scope(NAME)


def _trained(train: bool) -> Callable[..., Any]:
    """Returns a change that always runs the router in training mode (if `train`) or always in evaluation mode."""

    def change(B: Spec, route: Route) -> RouterOutput:
        return route.output(train=train)

    return change


def variants() -> Iterator[Variant]:
    computes = "S-BASE selects by the plan even at evaluation."
    yield Variant("s_base_always_balanced", computes, every((NAME,), _trained(True)), "SB-1b")
    computes = "The experts of S-BASE have a capacity factor of 1."
    yield fixed("s_base_with_a_capacity", computes, NAME, "SB-2b", capacity_factor=1.0)
    computes = "The gate of S-BASE is always the sigmoid."
    who = "NVIDIA/Megatron-LM (one choice)"
    yield fixed("s_base_with_sigmoid", computes, NAME, "SB-3b", who, combine_with="sigmoid")
    computes = "The gate of S-BASE is always the softmax."
    yield fixed("s_base_with_softmax", computes, NAME, "SB-3b", combine_with="softmax")
