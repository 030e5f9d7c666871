"""Cases of importance-score routing: the order and the choice of the remaining tokens, and the router `importance_score`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.backends.routers.composition import noisy_logits
from moespec.conformance.author.definition import Definition, call, composed
from moespec.conformance.author.inputs import CROWD, both, distinct, grid, groups_tokens, scores
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import (
    CHANGED,
    LOSSES,
    NORMAL,
    balance_scope,
    evaluation,
    logit_options,
    output_gradient,
    router_case,
)
from moespec.conformance.author.variant import Route, Spec, Variant, every, heap_order, kept, rerouted, variant
from moespec.conformance.format import Tensor
from moespec.spec import ROUTERS
from moespec.spec.algorithms.importance_score import surviving_tokens
from moespec.spec.routing import RouterOutput

NAME = "importance_score"
ORDER, CHOICE = "importance_score_order", "importance_score_choice"
CUT, DROPS, SIZE = "importance_cut", "overflow_drop", "degenerate_size"
T, E = 10, 3


def cases() -> Iterator[Definition]:
    yield from _allocation()
    yield from _router()


def _given(
    name: str, kind: str, purpose: str, scores: Tensor, *flags: str, combine: Tensor | None = None, **options: Any
) -> Definition:
    """Returns a case that computes the token order and the importance-score choice from `scores`. The router's options set the capacity."""
    _, tokens, experts = scores.array.shape
    router = ROUTERS[NAME].options(tokens=tokens, experts=experts, width=1, **options)
    drop = {key: value for key, value in options.items() if key == "drop"}
    inputs = {"scores": scores} | ({} if combine is None else {"combine_scores": combine})
    choice = call(CHOICE, {key: key for key in inputs}, choices=router.choices, capacity=router.capacity(), **drop)
    gradient = kind == "gradient"
    stages = (choice,) if gradient else (call(ORDER, {"scores": "scores"}, **drop), choice)
    by = (list(inputs)[-1],) if gradient else ()
    return composed(NAME, name, kind, purpose, *flags, inputs=inputs, stages=stages, by=by)


def _allocation() -> Iterator[Definition]:
    shape = (2, T, E)
    purpose = "One of ten tokens is removed: floor(0.1 T)."
    yield _given("a_tenth", "value", purpose, distinct("is/a", shape), CUT)
    purpose = "Of nine tokens none is removed."
    yield _given("not_yet_a_tenth", "value", purpose, distinct("is/b", (2, 9, E)), CUT)
    half: dict[str, Any] = {"choices": 2, "drop": 0.5, "capacity_factor": 0.75}
    purpose = "A removed token takes no slot with its first choice that others want with their second."
    two = distinct("is/d", shape)
    yield _given("two_choices", "overflow", purpose, two, CUT, "first_choices_first", DROPS, **half)
    purpose = "All choose the same expert: the most important tokens get its slots."
    yield _given("crowd", "overflow", purpose, both(CROWD), CUT, "priority_order", DROPS, drop=0.5)
    purpose = "Of equals the higher indices are removed."
    equal = groups_tokens(np.full((2, 20, E), 0.25))
    yield _given("all_equal", "tie", purpose, equal, CUT, "tie_order", drop=0.25)
    coarse = scores("is/f", (2, 20, E), step=0.125)
    yield _given("coarse", "tie", "Equals at the border.", coarse, CUT, "tie_order", drop=0.3, choices=2)
    near = groups_tokens(np.full(shape, 0.5) + grid("is/g", shape, reach=2.0, step=1.0) / 256)
    yield _given("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", near, CUT, drop=0.3)
    purpose = "One token is never removed."
    yield _given("one_token", "degenerate", purpose, scores("is/h", (1, 1, E)), SIZE, drop=0.75)
    purpose = "All but one are removed."
    yield _given("one_left", "degenerate", purpose, distinct("is/i", (2, 5, E)), SIZE, drop=0.875, choices=2)

    cut: dict[str, Any] = {"drop": 0.25, "choices": 2, "capacity_factor": 0.5}
    purpose = "Only kept weights carry one; the order carries none."
    yield _given("gradient_scores", "gradient", purpose, distinct("is/j", shape), CUT, "stop_gradient", **cut)
    cut["combine"] = scores("is/k/combine", shape)
    purpose = "Some scores sort and choose, others are the weights."
    yield _given("combine_scores", "overflow", purpose, distinct("is/k", shape), CUT, DROPS, **cut)
    purpose = "The weights carry the gradient, what sorts and chooses none."
    yield _given("gradient_combine_scores", "gradient", purpose, distinct("is/k", shape), CUT, "stop_gradient", **cut)


def _router() -> Iterator[Definition]:
    case = partial(router_case, NAME)
    sizes, inside = (6, E, 3), "noise_inside"

    def ordered(**drop: Any) -> dict[str, Any]:
        """Returns arguments of a case that computes the token order in an extra stage, since no router returns the order."""
        return {"sizes": sizes, "also": (call(ORDER, {"scores": "softmax_affinity"}, **drop),), **drop}

    default = ordered() | {"sizes": (T, E, 4), "slots_per_expert": 4}
    yield case("values", "value", "The router with its default fraction, four slots.", CUT, "generated_code", **default)
    half: dict[str, Any] = ordered(drop=0.5) | {"choices": 2, "capacity_factor": 0.5}
    yield case("half", "overflow", "Half are removed.", CUT, DROPS, **half)
    quarter: dict[str, Any] = {"sizes": sizes, "drop": 0.25}
    purpose = "The losses see all tokens, also those that are removed, and all choices; with noise at evaluation."
    noisy: dict[str, Any] = {"noise": NORMAL, "train": False, "noise_multiplier": 2.0, "choices": 2}
    yield case("losses", "value", purpose, CUT, inside, **quarter, **noisy, **LOSSES, **CHANGED)
    purpose = "The capacity of those that are left, rounded up to a multiple of 3."
    yield case("multiple", "value", purpose, CUT, "capacity_rounding", multiple_of=3, **quarter)
    tied = ordered() | {"sizes": (6, 4, 3)}
    yield case("zero_kernel", "tie", "A router that starts at 0.", "tie_order", zero=True, **tied)
    one = quarter | {"sizes": (6, 1, 3)}
    yield case("one_expert", "degenerate", "One expert.", SIZE, exact_ties=True, **one)
    yield output_gradient(case, **quarter)
    yield near_router(NAME, drop=0.25)
    yield evaluation(NAME)
    yield logit_options(NAME)
    yield balance_scope(NAME)


def _removing(name: str, computes: str, fraction: Callable[[int, float], float], ledger: str) -> Variant:
    """Returns the variant that removes the fraction `fraction(tokens, drop)` of the tokens."""

    def order(B: Spec, scores: Array, *, drop: float = 0.1) -> Any:
        return B.importance_score_order(scores, drop=fraction(scores.shape[1], drop))

    def choice(B: Spec, scores: Array, *, drop: float = 0.1, **options: Any) -> Any:
        return B.importance_score_choice(scores, drop=fraction(scores.shape[1], drop), **options)

    return Variant(name, computes, {ORDER: order, CHOICE: choice}, ledger)


def importance_of_channels(B: Spec, scores: Array, **options: Any) -> Any:
    """The importance score takes its maximum over the tokens, so all tokens are equally important."""
    order = B.importance_score_order(scores, **options)
    return np.tile(np.arange(order.shape[1], dtype=np.int32), (len(order), 1))


def important_in_heap_order(B: Spec, scores: Array, **options: Any) -> Any:
    """Equally important tokens are ordered by an unstable sort."""
    order = B.importance_score_order(scores, **options)
    return heap_order(scores.real.max(axis=2))[:, : order.shape[1]].astype(np.int32)


def removed_after_they_chose(
    B: Spec, scores: Array, *, choices: int, capacity: int, drop: float = 0.1, combine_scores: Array | None = None
) -> Any:
    """All tokens are allocated in order of importance. Then the least important tokens are removed and leave empty slots."""
    options: dict[str, Any] = {"choices": choices, "capacity": capacity, "combine_scores": combine_scores}
    order = B.batch_priority(scores)
    routing = B.token_choice(scores, order=order, **options)
    survives = np.zeros((len(scores), routing.tokens + 1), bool)
    np.put_along_axis(survives, order[:, : surviving_tokens(routing.tokens, drop)], True, axis=1)
    stays = np.take_along_axis(survives, routing.token.reshape(len(scores), -1), axis=1).reshape(routing.token.shape)
    return kept(routing, stays)


def _with_capacity_of(**changed: Any) -> Callable[..., Any]:
    """Returns a change that computes the capacity with the options `changed`."""

    def change(B: Spec, route: Route) -> RouterOutput:
        output = route.output()
        scores = B.softmax_affinity(noisy_logits(B, route.params, route.tokens, route.options, route.noise)[1])
        capacity = replace(route.options, **changed).capacity(train=route.train)
        chosen = B.importance_score_choice(
            scores, choices=route.options.choices, capacity=capacity, drop=route.options.drop
        )
        return rerouted(B, output, chosen)

    return change


def removed_only_in_training(B: Spec, route: Route) -> RouterOutput:
    """Tokens are removed only in training."""
    output = route.output()
    return output if route.train else route.output(options=replace(route.options, drop=0.0), train=False)


def importance_without_noise(B: Spec, route: Route) -> RouterOutput:
    """The clean logits determine the order and the choices of the tokens."""
    output = route.output()
    return rerouted(B, output, route.output(noise=None).routing)


def importance_loss_of_those_left(B: Spec, route: Route) -> RouterOutput:
    """The importance loss counts only the remaining tokens."""
    output = route.output()
    if "importance" not in output.losses:
        return output
    clean, noisy = noisy_logits(B, route.params, route.tokens, route.options, route.noise)
    left = B.importance_score_order(B.softmax_affinity(noisy), drop=route.options.drop)
    scores = np.take_along_axis(B.softmax_affinity(clean), left[..., None], axis=1)
    value = np.mean([B.importance_loss(scores[g : g + 1]) for g in range(len(scores))])
    return output._replace(losses={**output.losses, "importance": route.options.importance_weight * value})


def variants() -> Iterator[Variant]:
    computes = "The number of tokens to remove is rounded up."
    yield _removing(
        "removed_rounded_up", computes, lambda tokens, drop: min(math.ceil(drop * tokens), tokens - 1) / tokens, "IS-2b"
    )
    yield _removing("nobody_removed", "No token is removed.", lambda tokens, drop: 0.0, "IS-6b")
    yield variant(importance_of_channels, ORDER, ledger="IS-1b")
    yield variant(important_in_heap_order, ORDER, ledger="IS-3b")
    yield variant(removed_after_they_chose, CHOICE, ledger="IS-5b")
    computes = "The capacity of importance-score routing is computed from all tokens, including removed ones."
    yield Variant("capacity_of_all_tokens", computes, every((NAME,), _with_capacity_of(drop=0.0)), "IS-4b")
    yield variant(removed_only_in_training, NAME, ledger="IS-6b")
    yield variant(importance_without_noise, NAME, ledger="SA-1")
    yield variant(importance_loss_of_those_left, NAME, ledger="IS-7b")
