"""Cases of strictly balanced gating: masks, masked gates, the threshold loss, and the router."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import TIED, distinct, groups_tokens, of_experts, utilities
from moespec.conformance.author.routers import FRACTIONS, SCOPED, kernel_of, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, fixed, rerouted, reweighted, scaled, variant
from moespec.conformance.format import Tensor
from moespec.spec.routing import RouterOutput

SCORES = "groups tokens experts"

NAME, GATES, LOSS = "strictly_balanced", "masked_gates", "threshold_loss"
BATCH, ABOVE = "batchwise_mask", "threshold_mask"
E, D = 3, 2


def cases() -> Iterator[Definition]:
    yield from _masks()
    yield from _loss()
    yield from _router()


def _masks() -> Iterator[Definition]:
    def masked(name: str, kind: str, purpose: str, *flags: str, mask: str, inputs: Mapping[str, Tensor],
               **options: Any) -> Definition:  # fmt: skip
        made = call(mask, {part: part for part in inputs}, **options)
        stages = (made, call(GATES, {"gates": "gates", "mask": mask}))
        return composed(GATES, name, kind, purpose, *flags, inputs=inputs, stages=stages, exact_ties=kind == "tie")

    divided, order = "renormalised", "tie_order"
    purpose = "Three tokens for each expert, and the fractions of what a token keeps."
    batch = {"gates": utilities(f"{GATES}/a", (1, 5, E))}
    yield masked("training", "value", purpose, divided, "wrong_axis", mask=BATCH, inputs=batch, capacity=3)
    equal = {"gates": groups_tokens(TIED)}
    purpose = "Among equal gates the lower token is taken."
    yield masked("tied", "tie", purpose, order, mask=BATCH, inputs=equal, capacity=3)
    gates = groups_tokens([[0.5, 0.25, 0.25], [0.25, 0.125, 0.625], [0.75, 0.25, 0.0], [0.25, 0.125, 0.5]])
    above = {"gates": gates, "thresholds": of_experts([0.25, 0.125, 0.5])}
    purpose = "A gate that equals the threshold is not above it, and a token may be above none."
    yield masked("evaluation", "tie", purpose, divided, "uncovered_token", "threshold_mask", mask=ABOVE, inputs=above)
    mask = tensor(np.array([[[1, 0, 1], [0, 1, 0], [0, 0, 0]]], bool), SCORES)
    one = partial(single, GATES, GATES)
    yield one("gradient", "gradient", "By the gates.", divided, gates=distinct(f"{GATES}/b", (1, 3, E)), mask=mask)


def _loss() -> Iterator[Definition]:
    gates, limits = utilities(f"{LOSS}/a", (2, 5, E)), of_experts([0.125, 0.375, 0.75])
    case = partial(single, LOSS, LOSS, thresholds=limits, capacity=2)
    mask = "threshold_mask"
    yield case("value", "value", "Thresholds too low, about right and too high.", mask, gates=gates)
    purpose = "By the gates and the thresholds."
    yield case("gradient", "gradient", purpose, mask, gates=utilities(f"{LOSS}/b", (1, 5, E)))


def _router() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, *flags: str, sizes: tuple[int, int, int] = (4, E, D),
             train: bool = True, limits: tuple[float, ...] = (0.25, 0.375, 0.3125), zero: bool = False, **more: Any,
             ) -> Definition:  # fmt: skip
        kernel = kernel_of(f"routers/{NAME}/{name}", sizes[2], sizes[1], zero=zero)
        params = {**kernel, "thresholds": of_experts(limits)}
        given = {"params": params, "sizes": sizes, "train": train, "groups": 1, "exact_ties": kind == "tie", **more}
        return router_case(NAME, name, kind, purpose, *flags, **given)

    losses: dict[str, Any] = {"importance_weight": 0.5, "balance_weight": 0.125, "z_weight": 0.0625}
    losses |= {"threshold_weight": 0.25, "capacity_factor": 0.5, "multiple_of": 2}
    purpose = "Training: two tokens for each expert, with all losses."
    flags = ("renormalised", "generated_code", "capacity_rounding")
    yield case("training", "value", purpose, *flags, sizes=(5, E, D), **losses)
    purpose = "Evaluation: all tokens above the threshold, and no loss of the thresholds."
    yield case("evaluation", "value", purpose, "threshold_mask", train=False, limits=(0.375, 0.4375, 0.4375))
    purpose = "A capacity of evaluation, rounded to the nearest, which leaves the largest gates."
    fewer: dict[str, Any] = {"eval_capacity_factor": 1.25, "rounding": "round", "sizes": (4, 2, D)}
    yield case("evaluation_factor", "overflow", purpose, "evaluation_capacity", train=False,
               limits=(0.125, 0.125), **fewer)  # fmt: skip
    purpose = "Every score is equal: each expert takes the first tokens."
    four: dict[str, Any] = {"sizes": (4, 4, D), "limits": (0.25,) * 4}
    yield case("zero_kernel", "tie", purpose, "tie_order", zero=True, **four)
    purpose = "By tokens, kernel, thresholds and experts, with two slots."
    yield case("gradient", "gradient", purpose, "stop_gradient", slots_per_expert=2)
    yield case("balance_scope", "value", "A balance loss of both groups.", FRACTIONS, groups=2, **SCOPED)


def masked_not_divided(B: Spec, gates: Array, mask: Array) -> Array:
    """The gates that remain after masking are not divided by their sum."""
    return np.where(mask, gates, 0.0)


def masked_to_nan(B: Spec, gates: Array, mask: Array) -> Array:
    """The gates of a token without an expert are 0 / 0, which is NaN."""
    return np.where(mask.any(axis=2, keepdims=True), B.masked_gates(gates, mask), np.nan)


def batchwise_at_evaluation(B: Spec, route: Route) -> RouterOutput:
    """Experts of strictly balanced gating take an equal number of their best tokens even at evaluation."""
    output = route.output()
    if route.train:
        return output
    gates = B.softmax_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    capacity = route.options.capacity(train=True)
    weights = B.masked_gates(gates, B.batchwise_mask(gates, capacity=capacity))
    return rerouted(B, output, B.expert_choice(gates, capacity=capacity, combine_scores=weights))


def balanced_gates_as_they_are(B: Spec, route: Route) -> RouterOutput:
    """The combine weights of strictly balanced gating are the softmax, not divided by the sum of a token's remaining gates."""
    gates = B.softmax_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    return reweighted(B, route.output(), gates)


def variants() -> Iterator[Variant]:
    yield variant(masked_not_divided, GATES, ledger="BG-4b")
    yield variant(masked_to_nan, GATES, ledger="BG-1b")
    computes = "The loss of the thresholds is the mean over tokens and experts."
    yield scaled("threshold_loss_averaged", computes, "BG-6b", threshold_loss=lambda gates, **_: 1 / gates[0].size)
    computes = "The loss of the thresholds has no gradient with respect to the gates."
    yield fixed("thresholds_trained_alone", computes, LOSS, "BG-2b", gates=np.real)
    yield variant(balanced_gates_as_they_are, NAME, ledger="BG-4b")
    yield variant(batchwise_at_evaluation, NAME, ledger="BG-5b")
