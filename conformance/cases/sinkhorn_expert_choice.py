"""Cases of the router `sinkhorn_expert_choice`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import common, output_gradient, router_case

NAME = "sinkhorn_expert_choice"


def cases() -> Iterator[Definition]:
    case = partial(router_case, NAME)
    yield from common(NAME, combine_from_clean_logits=True, noise_multiplier=1.75)
    yield near_router(NAME)
    yield output_gradient(case, sizes=(4, 3, 3))
    purpose = "Capacity rounded up to a multiple of 2."
    yield case("multiple", "value", purpose, "capacity_rounding", multiple_of=2, capacity_factor=1.25)
    plan: dict[str, Any] = {"combine_with": "plan", "sinkhorn_iterations": 5}
    yield case("combine_plan", "value", "Ablation: combine with the plan.", "combine_with_plan", **plan)
