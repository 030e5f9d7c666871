"""Cases of the router `softmax_expert_choice`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import common, output_gradient, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, every, kept, noiseless, rerouted, variant
from moespec.spec.routing import RouterOutput

NAME = "softmax_expert_choice"


def cases() -> Iterator[Definition]:
    case = partial(router_case, NAME)
    rounding = "capacity_rounding"
    yield from common(NAME)
    yield near_router(NAME)
    yield output_gradient(case, sizes=(4, 3, 3))
    purpose = "Capacity rounded up to a multiple of 2."
    yield case("multiple", "value", purpose, rounding, multiple_of=2, capacity_factor=1.25)
    yield case("half", "value", "Half as many slots as tokens.", "uncovered_token", capacity_factor=0.5)

    capped: dict[str, Any] = {"capacity_factor": 2.0, "cap": 2, "cap_regularization": 0.25}
    purpose = "At most two experts for a token: the capped affinity selects, the softmax combines."
    yield case("cap", "value", purpose, "solver_steps", **capped)
    purpose = "The default regularisation of the cap."
    yield case("cap_default", "value", purpose, "solver_steps", cap=1)


def capped_as_in_the_paper(B: Spec, route: Route) -> RouterOutput:
    """The default regularisation of the cap is 0.001."""
    output = route.output()
    if route.options.cap is None or route.options.cap_regularization != 0.01:
        return output
    return route.output(options=replace(route.options, cap_regularization=0.001))


def cap_kept_exactly(B: Spec, route: Route) -> RouterOutput:
    """Of the experts that choose a token, the token keeps only the `cap` best."""
    output = route.output()
    if route.options.cap is None:
        return output
    dispatch, combine = output.routing.dense()
    scores = combine.real.sum(axis=3)
    last = -np.sort(-scores, axis=2)[:, :, route.options.cap - 1 : route.options.cap]
    lost = np.where(route.options.cap < route.options.experts, scores < last, False)
    return rerouted(B, output, kept(output.routing, (dispatch * ~lost[..., None]).any(axis=1)))


def variants() -> Iterator[Variant]:
    computes = "Softmax Expert Choice is not noisy in training."
    yield Variant("expert_choice_without_noise", computes, every((NAME,), noiseless), "EC-5b")
    yield variant(capped_as_in_the_paper, NAME, ledger="CP-4b")
    yield variant(cap_kept_exactly, NAME, ledger="CP-3b")
