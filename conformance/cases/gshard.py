"""Cases of GShard: the second expert, which is kept at random, and the router `gshard`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, Noise, call, single, tensor
from moespec.conformance.author.inputs import grid, groups_tokens, logits
from moespec.conformance.author.near_ties import near_router, near_ties
from moespec.conformance.author.routers import (
    balance_scope,
    evaluation,
    kernel_case,
    logit_options,
    output_gradient,
    replay,
    several_choices,
)
from moespec.conformance.author.variant import Route, Spec, Variant, fixed, rerouted, reweighted, variant
from moespec.spec.routing import RouterOutput

NAME, KEEP, SAMPLE = "gshard", "gshard_keep", "gshard_sample"
T, E, D = 5, 3, 3
UNIFORM = Noise("tokens", reach=0.5, step=0.0625, centre=0.5)

case = partial(kernel_case, NAME, sizes=(T, E, D), noise=UNIFORM)


def cases() -> Iterator[Definition]:
    second, divided, size = "choice_not_made", "renormalised", "degenerate_size"
    purpose = "Second experts are kept at random."
    yield case("training", "value", purpose, second, "generated_code", slots_per_expert=7)
    yield case("evaluation", "value", "Second experts are all kept.", second, noise=None)
    weights: dict[str, Any] = {"importance_weight": 0.5, "balance_weight": 0.125, "z_weight": 0.25, "multiple_of": 4}
    purpose = "Five experts, other losses; second experts are kept at random at evaluation, too, if draws are given."
    yield case("five_experts", "value", purpose, second, sizes=(6, 5, D), train=False, **weights)
    purpose = "Drops after the gates are divided; the best tokens come first."
    best: dict[str, Any] = {"capacity_factor": 0.5, "batch_priority": "sum"}
    yield case("factor", "overflow", purpose, "overflow_drop", "priority_order", divided, **best)
    purpose = "A second expert that is not kept asks for no slot, and a later token gets it."
    yield case("not_held", "overflow", purpose, second, capacity_factor=0.5, hold_unkept=False)
    yield case("not_normalised", "value", "Gates as they are.", divided, normalize_selected=False)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", noise=None, zero=True, sizes=(6, 4, D))
    yield case("two_experts", "degenerate", "Two experts.", size, sizes=(T, 2, D))
    yield output_gradient(case, noise=None, sizes=(4, E, D))
    yield near_router(NAME)
    yield replay(case, "choice_not_made", "renormalised", recorded=2, noise=None, balance_weight=0.0)
    yield evaluation(NAME, eval_capacity_factor=0.625)
    yield from _sampled()
    yield logit_options(NAME, second_expert="all")
    yield several_choices(NAME, second_expert="all")
    yield balance_scope(NAME)

    gates = groups_tokens([[0.75, 0.25, 0.0], [0.5, 0.125, 0.375], [0.375, 0.5, 0.125], [0.5, 0.5, 0.0]])
    draws = tensor([[0.5, 0.75, 0.6875, 0.96875]], "groups tokens")
    purpose = "A draw that equals twice the second gate does not keep it."
    yield single(NAME, KEEP, "equal_draw", "tie", purpose, second, exact_ties=True, gates=gates, noise=draws)
    near = next(near_ties(NAME, call(KEEP, {"gates": "router_logits", "noise": "noise"})))
    draws = tensor(np.tile([2.0, 2.0, 2.015625], (2, 2)), "groups tokens")
    purpose = near.purpose.replace("Scores that differ", "Twice a second gate and a draw that differ")
    yield replace(near, name=f"keep_{near.name}", purpose=purpose, inputs={**near.inputs, "noise": draws})


def _sampled() -> Iterator[Definition]:
    """Returns cases in which the second expert is sampled."""
    single_ = partial(single, NAME, SAMPLE)
    drawn = groups_tokens(grid(f"{NAME}/{SAMPLE}/noise", (2, 6, 4), reach=0.375, step=0.0625, centre=0.5))
    purpose = "The first expert is that of the largest logit; the others have their logit and a Gumbel draw."
    yield single_("sampled", "value", purpose, logits=logits(f"{NAME}/{SAMPLE}", (2, 6, 4)), noise=drawn)
    level = groups_tokens(np.zeros((2, 6, 4)))
    yield single_("sampled_equal", "tie", "Equal logits: expert 0 is first.", "tie_order", logits=level, noise=drawn)
    noise = Noise("tokens experts", reach=0.375, step=0.0625, centre=0.5)
    sampled = partial(case, second_expert="sampled", noise=noise, sizes=(6, 4, D))
    purpose = "A second expert that is sampled; weights and priority are those of the gates."
    yield sampled("second_sampled", "overflow", purpose, "priority_order", batch_priority="max", capacity_factor=0.75)
    purpose = "Division of what is left after drops, as fairseq has it; draws at evaluation, too."
    after: dict[str, Any] = {"normalize_when": "after", "capacity_factor": 0.75, "train": False}
    yield sampled("second_sampled_after", "overflow", purpose, "renormalised", "overflow_drop", **after)


def second_kept_if_small(B: Spec, gates: Array, noise: Array) -> Array:
    """The second expert is kept if the random draw exceeds twice the gate of the expert."""
    keep = B.gshard_keep(gates, noise)
    return np.stack([keep[..., 0], ~keep[..., 1]], axis=2)


def both_experts_sampled(B: Spec, logits: Array, noise: Array) -> Array:
    """Both experts are sampled, including the first."""
    return B.add_gating_noise(logits, -np.log(-np.log(noise)), multiplier=float(logits.shape[2]))


def gshard_chance_of_raw_gates(B: Spec, route: Route) -> RouterOutput:
    """The probability of keeping the second expert is twice the gate of the expert before normalisation."""
    output = route.output()
    if route.options.second_expert != "random":
        return output
    scores = B.softmax_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    combine = B.normalize_selected(scores, choices=2) if route.options.normalize_selected else scores
    held: dict[str, Any] = {}
    if route.noise is not None:
        held = {"keep": B.gshard_keep(scores, route.noise), "hold": route.options.hold_unkept}
    capacity = route.options.capacity(train=route.train)
    return rerouted(B, output, B.token_choice(scores, combine_scores=combine, choices=2, capacity=capacity, **held))


def gshard_normalised_after_drops(B: Spec, route: Route) -> RouterOutput:
    """After the random choice and after drops, GShard divides a token's remaining gates by their sum."""
    output = route.output()
    if not route.options.normalize_selected:
        return output
    combine = output.routing.dense().combine
    total = combine.sum(axis=(2, 3), keepdims=True)
    return reweighted(B, output, (combine / np.where(total.real > 0, total, 1.0)).sum(axis=3))


def gshard_random_at_evaluation(B: Spec, route: Route) -> RouterOutput:
    """Even without noise, GShard keeps second experts only at random."""
    output = route.output()
    if route.noise is not None or route.options.second_expert != "random":
        return output
    return route.output(noise=np.full(route.tokens.shape[:2], 0.999))


def variants() -> Iterator[Variant]:
    yield variant(second_kept_if_small, KEEP)
    computes = "The second expert is kept with the chance min(1, g2 / 0.2)."
    who = "tensorflow/mesh"
    yield fixed("second_kept_by_a_fifth", computes, KEEP, "GS-5b", who, noise=lambda noise: 0.4 * noise)
    yield variant(gshard_normalised_after_drops, NAME, ledger="GS-1b", who="facebookresearch/fairseq")
    computes = "The gates of GShard are not divided by their sum."
    yield fixed("gshard_gates_as_they_are", computes, NAME, "GS-1c", normalize_selected=False)
    yield variant(gshard_chance_of_raw_gates, NAME, ledger="GS-2b", who="facebookresearch/fairseq")
    computes = "A second expert that is not kept requests no slot, so a later token gets it."
    who = "tensorflow/mesh"
    yield fixed("gshard_unkept_make_no_request", computes, NAME, "GS-3b", who, hold_unkept=False)
    yield variant(gshard_random_at_evaluation, NAME, ledger="GS-4b")
    yield variant(both_experts_sampled, SAMPLE)
    computes = "The second-best expert is always kept."
    yield fixed("gshard_second_always_kept", computes, NAME, "GS-6c", "microsoft/Tutel", second_expert="all")
