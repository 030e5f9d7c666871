"""Cases of the router `softmax_token_choice`."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.backends.routers.composition import noisy_logits
from moespec.conformance.author.definition import Definition, Draws
from moespec.conformance.author.inputs import kernel, of_experts
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import (
    FRACTIONS,
    LAYER,
    NORMAL,
    SCOPED,
    common,
    dropless,
    replay,
    router_case,
    several_choices,
)
from moespec.conformance.author.variant import Route, Spec, Variant, renormalised, rerouted, variant
from moespec.spec.routing import RouterOutput

NAME = "softmax_token_choice"
T, E, D = 6, 3, 4

case = partial(router_case, NAME)
INSIDE, SIZE, DROP = "noise_inside", "degenerate_size", "overflow_drop"
ROUNDING, PRIORITY, CONSTANT = "capacity_rounding", "priority_order", "stop_gradient"


def cases() -> Iterator[Definition]:
    yield from common(NAME, choices=2)
    yield near_router(NAME, batch_priority="max", capacity_factor=0.5)
    purpose = "Capacity rounded up to a multiple of 2."
    yield case("multiple", "value", purpose, ROUNDING, multiple_of=2, capacity_factor=1.25)
    yield case("one_expert", "degenerate", "One expert.", SIZE, sizes=(T, 1, D), exact_ties=True)
    yield case("one_token", "degenerate", "One token.", SIZE, sizes=(1, E, D))
    purpose = "By tokens, kernel and expert weights; the selection carries none."
    yield case("gradient", "gradient", purpose, CONSTANT)
    yield from _choices()
    two: dict[str, Any] = {"recorded": 3, "choices": 3, "normalize_selected": True}
    yield replay(case, "renormalised", "priority_order", tries=4, batch_priority="max", importance_weight=0.5, **two)
    losses: dict[str, Any] = {"balance_weight": 0.5, "balance_counts": "all", "losses": True, "slots_per_expert": None}
    yield replay(case, CONSTANT, name="replay_gradient", kind="gradient", by=LAYER, **two, **losses)
    yield replay(case, "renormalised", name="replay_after", normalize_when="after", slot_order="token", **two)
    yield from _capacities()
    params = {"kernel": kernel(f"routers/{NAME}/dropless", 3, 5), "bias": of_experts([4.0, -4.0, 0.5, 0.25, -0.25])}
    yield from dropless(partial(case, params=params, bias=True, sizes=(7, 5, 3), normalize_selected=True), case)
    unlimited: dict[str, Any] = {"groups": 3, "choices": 3, "capacity_factor": math.inf}
    purpose = "Every score is equal, and there is no capacity: the first three of eight experts have all tokens."
    yield case("dropless_tie", "tie", purpose, "tie_order", "room_for_all", zero=True, sizes=(7, 8, 3), **unlimited)
    purpose = "Nine choices of twelve experts, and no capacity at evaluation."
    many: dict[str, Any] = {"capacity_factor": 0.5, "eval_capacity_factor": math.inf, "choices": 9}
    many |= {"sizes": (5, 12, 7), "draws": Draws(fixed=(140, 105))}
    yield case("nine_choices", "value", purpose, "room_for_all", "evaluation_capacity", **many)


def _choices() -> Iterator[Definition]:
    """Returns cases with two choices, with token priorities, with retries, and with a gradient."""
    half: dict[str, Any] = {"capacity_factor": 0.5}
    purpose = "Two choices, half of the room."
    yield case("two_choices", "overflow", purpose, "first_choices_first", DROP, choices=2, **half)
    yield case("factor_one", "value", "As many slots as choices.", DROP)
    purpose = "Best tokens first; those whose expert is full try the others."
    yield case("priority_max", "overflow", purpose, PRIORITY, "rerouted", batch_priority="max", tries=3, **half)
    by_sum: dict[str, Any] = {"batch_priority": "sum", "choices": 2, **half}
    yield case("priority_sum", "overflow", "By the sum of two choices.", PRIORITY, **by_sum)
    yield case("gradient_two", "gradient", "Two choices with drops.", CONSTANT, choices=2, **half)


def _capacities() -> Iterator[Definition]:
    """Returns cases with a fixed number of slots, with normalised weights, and with other implementations' rules for slots and weights."""
    numbered: dict[str, Any] = {"slots_per_expert": 3, "capacity_factor": 0.5}
    purpose = "Three slots for each expert, whatever the factor."
    yield case("slots_per_expert", "value", purpose, ROUNDING, **numbered)
    shared: dict[str, Any] = {"normalize_selected": True, "choices": 2, "capacity_factor": 0.75}
    purpose = "The weights of a token are divided by the sum of its choices, noisy as they are, before any is dropped."
    yield case(
        "normalize_selected", "overflow", purpose, "renormalised", INSIDE, DROP, noise=NORMAL, groups=1, **shared
    )
    purpose = "Through the sum of the chosen, too."
    yield case("gradient_normalize_selected", "gradient", purpose, "renormalised", **shared)
    yield several_choices(NAME)
    purpose = "Of a balance loss of both choices in both groups, by the kernel."
    scoped: dict[str, Any] = {**SCOPED, "choices": 2, "balance_counts": "all", "by": ("router/kernel",)}
    scoped["capacity_factor"] = 0.75
    yield case("gradient_balance_scope", "gradient", purpose, FRACTIONS, "stop_gradient", losses=True, **scoped)


def four_slots_at_least(B: Spec, route: Route) -> RouterOutput:
    """Each expert has at least 4 slots. After drops, a token's remaining weights are divided by their sum."""
    output = route.output()
    scores = B.softmax_affinity(noisy_logits(B, route.params, route.tokens, route.options, route.noise)[1])
    choices = route.options.choices
    slots = choices * route.options.capacity_factor * route.options.tokens / route.options.experts
    routing = B.token_choice(scores, choices=choices, capacity=max(4, int(min(route.options.tokens, slots))))
    return rerouted(B, output, renormalised(routing))


def variants() -> Iterator[Variant]:
    yield variant(four_slots_at_least, NAME, ledger="CA-2b", who="st-moe-pytorch")
