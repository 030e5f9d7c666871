"""The router `sparsity_constrained_token_choice`, and the variants of both routers by a sparsity-constrained plan."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.routers import composition
from moespec.backends.routers.composition import noisy_logits, token_choice
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
    router_case,
    several_choices,
)
from moespec.conformance.author.variant import Variant, every, noiseless, rerouted, variant
from moespec.spec.numerics import stable_order

NAME = "sparsity_constrained_token_choice"
BOTH = (NAME, "sparsity_constrained_expert_choice")
T, E, D, K = 3, 3, 2, 2


def cases() -> Iterator[Definition]:
    """All cases of this module. The noise of one is at evaluation, that of the other in training."""
    case = partial(router_case, NAME, groups=1, sizes=(T, E, D), choices=K)
    inside, zero = "noise_inside", "zero_score_slots"
    purpose = "Noise makes the plan and not the weights; all losses, and an even number of slots."
    noisy: dict[str, Any] = {"noise": NORMAL, "noise_multiplier": 2.0, "combine_from_clean_logits": True}
    even: dict[str, Any] = {"capacity_factor": 1.25, "multiple_of": 2}
    yield case(
        "noise", "value", purpose, inside, "capacity_rounding", train=False, **noisy, **even, **LOSSES, **CHANGED
    )
    purpose = "A token that the plan gives to one expert chooses another one all the same; the weights of both carry gradients."
    yield case(
        *("gradient_losses", "gradient", purpose, inside, "stop_gradient", zero),
        params=kernel_of(f"routers/{NAME}/gradient_losses/kernel", D, E, reach=6.0),
        accept=lambda plan: bool(((plan > 0).sum(axis=1) < K).any()),
        noise=NORMAL,
        noise_multiplier=1.0,
        normalize_selected=True,
        slots_per_expert=3,
        importance_weight=0.5,
        load_weight=0.25,
        z_weight=0.0625,
    )
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


# Variants. A change is `(B, route, params, tokens, options, noise=None, train=False)`.


def noisy_by_default(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The sparsity-constrained routers are noisy in training by default."""
    output = route(params, tokens, options, noise=noise, train=train)
    if options.noise_multiplier:
        return output
    return route(params, tokens, replace(options, noise_multiplier=1.0), noise=noise, train=train)


def _plans(
    B: Any, params: Any, tokens: Any, options: Any, noise: Any, train: bool, *, raw: bool = False
) -> tuple[Any, Any]:
    """The plan of either router, of the softmax or of the raw logits, and the scores that weight the outputs."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    constraint: dict[str, Any] = {"capacity": options.capacity(train=train)}
    if not options.experts_choose:
        constraint = {"capacity": options.choices, "sparsity": "token"}
    plan = sparse_plan(B, options, noisy.real if raw else B.softmax_affinity(noisy), **constraint)
    return plan, combine_scores(B, options, clean, noisy, plan)


def raw_utility(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The utility of the sparsity-constrained plan is the raw logits, not their softmax."""
    output = route(params, tokens, options, noise=noise, train=train)
    plan, scores = _plans(B, params, tokens, options, noise, train, raw=True)
    if not options.experts_choose:
        return rerouted(
            B, output, token_choice(B, options, plan, scores, train=train, **composition.several_choices(options))
        )
    capacity, drop = options.capacity(train=train), options.drop_zero_plan
    return rerouted(B, output, B.expert_choice(plan, capacity=capacity, combine_scores=scores, drop_zero=drop))


def zero_choices_not_made(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """A token makes no choice of an expert whose sparsity-constrained plan is 0."""
    output = route(params, tokens, options, noise=noise, train=train)
    plan, scores = _plans(B, params, tokens, options, noise, train)
    made = np.take_along_axis(plan, stable_order(plan)[..., : options.choices], axis=-1) > 0
    return rerouted(
        B,
        output,
        token_choice(B, options, plan, scores, train=train, keep=made, **composition.several_choices(options)),
    )


def zero_choices_without_weight(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The weight of an expert whose sparsity-constrained plan is 0 is 0, also where the softmax combines."""
    output = route(params, tokens, options, noise=noise, train=train)
    plan, scores = _plans(B, params, tokens, options, noise, train)
    if options.normalize_selected:
        scores = B.normalize_selected(plan, scores, choices=options.choices)
    return rerouted(
        B,
        output,
        token_choice(
            B,
            replace(options, normalize_selected=False),
            plan,
            scores * (plan > 0),
            train=train,
            slot_order=options.slot_order,
        ),
    )


VARIANTS = (
    Variant(
        "never_noisy",
        "The sparsity-constrained routers are not noisy in training, also where noise is requested.",
        every(BOTH, noiseless),
        "RT-4",
    ),
    variant(noisy_by_default, *BOTH, ledger="RT-4b"),
    variant(raw_utility, *BOTH, ledger="ST-2b"),
    variant(zero_choices_not_made, NAME, ledger="RT-6b"),
    variant(zero_choices_without_weight, NAME, ledger="RT-6c"),
)
