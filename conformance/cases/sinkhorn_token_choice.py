"""Cases of the router `sinkhorn_token_choice`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import NORMAL, common, replay, router_case, several_choices

NAME = "sinkhorn_token_choice"


def cases() -> Iterator[Definition]:
    case = partial(router_case, NAME)
    inside, plan, drop = "noise_inside", "combine_with_plan", "overflow_drop"
    yield from common(NAME, choices=2, sinkhorn_iterations=7)
    yield near_router(NAME)
    yield several_choices(NAME)
    yield replay(case, recorded=3, choices=3, normalize_selected=True)
    purpose = "By tokens, kernel and expert weights; the selection carries none."
    yield case("gradient", "gradient", purpose, "stop_gradient")
    two: dict[str, Any] = {"choices": 2, "capacity_factor": 0.5, "batch_priority": "sum"}
    purpose = "Two choices, half of the room; the best tokens of the plan come first."
    yield case("two_choices", "overflow", purpose, "first_choices_first", "priority_order", drop, **two)
    purpose = "The load loss of the logits, not of the plan."
    yield case(
        "load", "value", purpose, "threshold_includes_self", noise=NORMAL, load_weight=0.5, groups=1, sizes=(4, 2, 3)
    )
    clean: dict[str, Any] = {"noise": NORMAL, "combine_from_clean_logits": True}
    yield case("clean_combine", "value", "Combine weights from the logits without noise.", inside, **clean)
    yield case("combine_plan", "value", "Ablation: combine with the plan.", plan, combine_with="plan")
    few: dict[str, Any] = {"combine_with": "plan", "sinkhorn_iterations": 5}
    yield case("gradient_plan", "gradient", "Ablation: through the iterations of the plan.", plan, **few)
