"""Cases of the router `sparsity_constrained_token_choice`, and variants of both routers with a sparsity-constrained plan."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.backends.routers import composition
from moespec.backends.routers.plans import combine_scores, sparse_plan
from moespec.conformance.author.definition import Definition
from moespec.conformance.author.routers import (
    CHANGED,
    LOSSES,
    NORMAL,
    balance_scope,
    kernel_of,
    logit_options,
    output_gradient,
    replay,
    router_case,
    several_choices,
)
from moespec.conformance.author.variant import Route, Spec, Variant, every, noiseless, rerouted, variant
from moespec.spec.numerics import stable_order
from moespec.spec.routing import RouterOutput

NAME = "sparsity_constrained_token_choice"
BOTH = (NAME, "sparsity_constrained_expert_choice")
T, E, D, K = 3, 3, 2, 2


def cases() -> Iterator[Definition]:
    """Yields all cases of this file. One case has noise at evaluation, and one case has noise in training."""
    case = partial(router_case, NAME, groups=1, sizes=(T, E, D), choices=K)
    inside, zero = "noise_inside", "zero_score_slots"
    purpose = "Noise makes the plan and not the weights; all losses, and an even number of slots."
    noisy: dict[str, Any] = {"noise": NORMAL, "noise_multiplier": 2.0, "combine_from_clean_logits": True}
    even: dict[str, Any] = {"capacity_factor": 1.25, "multiple_of": 2}
    noisy |= {"train": False, **even, **LOSSES, **CHANGED}
    yield case("noise", "value", purpose, inside, "capacity_rounding", **noisy)
    purpose = "A token that the plan gives to one expert chooses another one all the same; the weights of both carry gradients."
    few: dict[str, Any] = {"accept": lambda plan: bool(((plan > 0).sum(axis=1) < K).any())}
    few["params"] = kernel_of(f"routers/{NAME}/gradient_losses/kernel", D, E, reach=6.0)
    few |= {"noise": NORMAL, "noise_multiplier": 1.0, "normalize_selected": True, "slots_per_expert": 3}
    few |= {"importance_weight": 0.5, "load_weight": 0.25, "z_weight": 0.0625}
    yield case("gradient_losses", "gradient", purpose, inside, "stop_gradient", zero, **few)
    yield output_gradient(case)
    purpose = "Five steps of the dual, whose plan orders and combines; the factor of evaluation comes before the slots of training."
    at_evaluation: dict[str, Any] = {"eval_capacity_factor": 1.25, "slots_per_expert": 1, "rounding": "round"}
    dual: dict[str, Any] = {"transport_objective": "dual", "transport_steps": 5, "combine_with": "plan"}
    flags = ("evaluation_capacity", "combine_with_plan", "solver_steps", "priority_order")
    arguments = at_evaluation | dual | {"batch_priority": "max"}
    yield case("evaluation_factor", "value", purpose, *flags, train=False, **arguments)
    purpose = "A router that starts at 0: every score is equal, and the plan gives all tokens to the same experts."
    yield case("zero_kernel", "tie", purpose, "tie_order", zero=True)
    yield logit_options(NAME)
    yield balance_scope(NAME)
    yield several_choices(NAME)
    yield replay(case, recorded=3, choices=3)


def noisy_by_default(B: Spec, route: Route) -> RouterOutput:
    """The sparsity-constrained routers are noisy in training by default."""
    output = route.output()
    if route.options.noise_multiplier:
        return output
    return route.output(options=replace(route.options, noise_multiplier=1.0))


def _plans(B: Spec, route: Route, *, raw: bool = False) -> tuple[Array, Array]:
    """Returns the plan of a router and the scores that weight the outputs. raw: use the raw logits as utility, not the softmax."""
    clean, noisy = route.logits(B)
    constraint: dict[str, Any] = {"capacity": route.options.capacity(train=route.train)}
    if not route.options.experts_choose:
        constraint = {"capacity": route.options.choices, "sparsity": "token"}
    plan = sparse_plan(B, route.options, noisy.real if raw else B.softmax_affinity(noisy), **constraint)
    return plan, combine_scores(B, route.options, clean, noisy, plan)


def _chosen(B: Spec, route: Route, options: Any, plan: Array, scores: Array, **more: Any) -> RouterOutput:
    """Returns the output that the router would have if each token chose the experts with its largest entries in the plan."""
    more |= composition.several_choices(options)
    return rerouted(B, route.output(), composition.token_choice(B, options, plan, scores, train=route.train, **more))


def raw_utility(B: Spec, route: Route) -> RouterOutput:
    """The sparsity-constrained plan uses the raw logits as utility, not their softmax."""
    (plan, scores), options = _plans(B, route, raw=True), route.options
    if not options.experts_choose:
        return _chosen(B, route, options, plan, scores)
    given = {"capacity": options.capacity(train=route.train), "drop_zero": options.drop_zero_plan}
    return rerouted(B, route.output(), B.expert_choice(plan, combine_scores=scores, **given))


def zero_choices_not_made(B: Spec, route: Route) -> RouterOutput:
    """A token does not choose an expert whose entry in the sparsity-constrained plan is 0."""
    plan, scores = _plans(B, route)
    made = np.take_along_axis(plan, stable_order(plan)[..., : route.options.choices], axis=-1) > 0
    return _chosen(B, route, route.options, plan, scores, keep=made)


def zero_choices_without_weight(B: Spec, route: Route) -> RouterOutput:
    """Experts whose entry in the sparsity-constrained plan is 0 have weight 0, even if the weights come from the softmax."""
    plan, scores = _plans(B, route)
    if route.options.normalize_selected:
        scores = B.normalize_selected(plan, scores, choices=route.options.choices)
    return _chosen(B, route, replace(route.options, normalize_selected=False), plan, scores * (plan > 0))


def variants() -> Iterator[Variant]:
    computes = "The sparsity-constrained routers are not noisy in training even if noise is requested."
    yield Variant("never_noisy", computes, every(BOTH, noiseless), "RT-4")
    yield variant(noisy_by_default, *BOTH, ledger="RT-4b")
    yield variant(raw_utility, *BOTH, ledger="ST-2b")
    yield variant(zero_choices_not_made, NAME, ledger="RT-6b")
    yield variant(zero_choices_without_weight, NAME, ledger="RT-6c")
