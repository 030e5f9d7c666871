"""Cases of the router `switch`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.routers.composition import logits
from moespec.conformance.author.definition import Definition, Noise
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import (
    balance_scope,
    evaluation,
    kernel_case,
    logit_options,
    output_gradient,
    replay,
)
from moespec.conformance.author.variant import Route, Spec, Variant, rerouted, reweighted, variant
from moespec.spec.routing import RouterOutput

NAME = "switch"
T, E, D = 5, 3, 3
UNIFORM = Noise("tokens width", reach=1.0, step=0.125)

case = partial(kernel_case, NAME, sizes=(T, E, D))


def cases() -> Iterator[Definition]:
    size = "degenerate_size"
    yield case("values", "value", "Evaluation: the tokens as they are.", "generated_code")
    purpose = "Training, with two slots: router and losses see jittered tokens."
    yield case("jitter", "value", purpose, "jitter_factor", noise=UNIFORM, slots_per_expert=2)
    large: dict[str, Any] = {"jitter": 0.5, "importance_weight": 0.25, "balance_weight": 0.125, "z_weight": 0.5}
    purpose = "A large jitter and all losses, at evaluation."
    large |= {"noise": UNIFORM, "train": False, "multiple_of": 4}
    yield case("large_jitter", "value", purpose, "jitter_factor", **large)
    purpose = "Fewer slots: tokens are dropped, but not the best ones."
    best: dict[str, Any] = {"capacity_factor": 0.5, "batch_priority": "max"}
    yield case("factor_one", "overflow", purpose, "overflow_drop", "priority_order", **best)
    purpose = "Tokens whose expert is full try the next best."
    yield case("tries", "overflow", purpose, "rerouted", capacity_factor=0.75, tries=2)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", zero=True, sizes=(6, 4, D))
    yield case("one_expert", "degenerate", "One expert.", size, sizes=(T, 1, D))
    purpose = "One token, whose gate divided by its sum is 1."
    yield case("one_token", "degenerate", purpose, size, "renormalised", sizes=(1, E, D), normalize_selected=True)
    yield output_gradient(case, sizes=(4, E, D))
    yield near_router(NAME)
    yield replay(case, tries=2)
    yield evaluation(NAME)
    yield logit_options(NAME)
    yield balance_scope(NAME, sizes=(6, 4, D))


def switch_gate_of_clean_tokens(B: Spec, route: Route) -> RouterOutput:
    """Switch computes the gate from tokens without jitter."""
    clean = logits(B, route.params, route.tokens, route.options, None)
    return reweighted(B, route.output(), B.softmax_affinity(clean))


def jitter_of_logits(B: Spec, route: Route) -> RouterOutput:
    """Switch adds its noise to the logits."""
    if route.noise is None:
        return route.output()
    noise = route.options.jitter * route.noise.sum(axis=2, keepdims=True) * (1.0 + np.arange(route.options.experts))
    scores = B.softmax_affinity(logits(B, route.params, route.tokens, route.options, None) + noise)
    capacity = route.options.capacity(train=route.train)
    return rerouted(B, route.output(), B.token_choice(scores, choices=1, capacity=capacity))


def switch_evaluates_with_two(B: Spec, route: Route) -> RouterOutput:
    """Switch defaults to a capacity factor of 2 at evaluation."""
    factor = route.options.eval_capacity_factor
    return route.output(options=replace(route.options, eval_capacity_factor=2.0 if factor is None else factor))


def variants() -> Iterator[Variant]:
    yield variant(jitter_of_logits, NAME, ledger="SW-1b")
    yield variant(switch_gate_of_clean_tokens, NAME, ledger="SW-2b")
    yield variant(switch_evaluates_with_two, NAME, ledger="SW-5b")
