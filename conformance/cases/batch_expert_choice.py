"""Cases of batch-level Expert Choice: the predictor, its loss, the thresholds, and the router `batch_expert_choice`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, logits, of_experts, scores, tokens
from moespec.conformance.author.routers import LAYER, kernel_of, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, chosen_mask, fixed, rerouted, variant, with_loss
from moespec.spec.routing import RouterOutput

NAME, PARTS, FLAG = "batch_expert_choice", "capacity_predictor", "capacity_prediction"
LOGITS, LOSS, REACHED, MOVED = "capacity_logits", "capacity_loss", "capacity_thresholds", "moved_thresholds"
ABOVE = "scores_above"

PREDICTOR = ("w1", "b1", "w2", "b2")
D, E = 4, 3


def _predictor(key: str) -> dict[str, Any]:
    shapes = {"w1": ("width hidden", (D, D)), "b1": ("hidden", (D,)), "w2": ("hidden experts", (D, E))}
    shapes["b2"] = ("experts", (E,))
    return {name: tensor(grid(f"{key}/{name}", shape, reach=1.0), axes) for name, (axes, shape) in shapes.items()}


def cases() -> Iterator[Definition]:
    case = partial(single, PARTS, LOGITS)
    yield case("logits", "value", "Two groups.", FLAG, tokens=tokens("cp/a"), **_predictor("cp/a"))
    purpose = "By all but the tokens, which are constants."
    made = call(LOGITS, {n: n for n in ("tokens", *PREDICTOR)})
    inputs = {"tokens": tokens("cp/b"), **_predictor("cp/b")}
    yield composed(PARTS, "gradient_logits", "gradient", purpose, FLAG, inputs=inputs, stages=(made,), by=PREDICTOR)
    mask = tensor(grid("cp/c", (2, 6, E)) > 0, "groups tokens experts")
    for name, kind in (("loss", "value"), ("gradient_loss", "gradient")):
        purpose = "Large logits, too."
        yield single(PARTS, LOSS, name, kind, purpose, FLAG, logits=logits("cp/d", reach=40.0, step=0.5), mask=mask)
    yield single(PARTS, REACHED, "reached", "value", "Two groups.", FLAG, scores=scores("cp/e"), capacity=2)
    sums = tensor([[1.5, 0.25, 2.0], [2.0, 2.0, 2.0]], "pair experts")
    kept = of_experts([0.5, 0.0, 0.25])
    yield single(PARTS, MOVED, "moved", "value", "Of two groups.", FLAG, thresholds=kept, reached=sums, decay=0.75)
    for name, kind in (("above", "tie"), ("gradient_above", "gradient")):
        purpose = "One at its threshold, or above it."
        above: dict[str, Any] = {"predicted": scores("cp/g"), "thresholds": of_experts([0.5, 0.75, 0.25])}
        above["predicted"].array[0, 0, 0] = 0.5 if kind == "tie" else 0.625
        values: dict[str, Any] = {"scores": scores("cp/f"), **above, "exact_ties": kind == "tie"}
        values["by"] = ("scores", "predicted")  # the thresholds are a state and have no gradient
        yield single(PARTS, ABOVE, name, kind, purpose, FLAG, **values)
        largest = "As many as are above, of the largest scores."
        yield single(PARTS, ABOVE, name.replace("above", "largest"), kind, largest, FLAG, **values, largest=True)
    values |= {
        "scores": tensor(np.repeat([[[0.5], [0.25]] * 3] * 2, 3, 2), "groups tokens experts"),
        "exact_ties": True,
    }
    yield single(PARTS, ABOVE, "largest_tied", "tie", "The lower index first.", "tie_order", **values, largest=True)
    yield from _router()


def _router() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, *flags: str, alone: bool = False, zero: bool = False, **more: Any
    ) -> Definition:
        params = kernel_of(f"{NAME}/{name}", D, E, zero=zero) | ({} if alone else _predictor(f"{NAME}/{name}"))
        state = {"thresholds": of_experts([0.5, 0.375, 0.5])}
        options = {"predictor": not alone, "threshold_decay": 0.75, **more}
        return router_case(NAME, name, kind, purpose, *flags, params=params, state=state, **options)

    yield case("training", "value", "Training, with the loss.", FLAG, "generated_code", train=True, capacity_factor=1.5)
    purpose = "Other slots and another weight, of which evaluation sees nothing but the thresholds."
    slots: dict[str, Any] = {"slots_per_expert": 3, "predictor_weight": 0.25}
    yield case("slots", "value", purpose, FLAG, train=True, **slots)
    yield case("zero_kernel", "tie", "The first tokens, alike.", "tie_order", zero=True, alone=True, train=True)
    yield case("evaluation", "value", "As many as are above a threshold.", FLAG, "empty_slot", train=False)
    few: dict[str, Any] = {"eval_capacity_factor": 1.25, "rounding": "round", "train": False}
    yield case("evaluation_factor", "overflow", "Two at most.", "evaluation_capacity", **few)
    above: dict[str, Any] = {"eval_take": "above", "train": False}
    yield case("evaluation_above", "value", "All that are above a threshold.", FLAG, "empty_slot", **above)
    yield case("evaluation_above_factor", "overflow", "Two at most.", "evaluation_capacity", **few | above)
    yield case("alone", "value", "No predictor; a multiple of 4.", FLAG, train=True, alone=True, multiple_of=4)
    yield case("gradient_output", "gradient", "Of the output.", "stop_gradient", train=True, by=LAYER, losses=False)


def gelu_in_the_predictor(B: Spec, tokens: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """The activation of the predictor is GELU."""
    return B.gelu(tokens @ w1 + b1, form="tanh") @ w2 + b2


def chosen_at_evaluation(B: Spec, route: Route) -> RouterOutput:
    """Even at evaluation, an expert fills all its slots with its highest-scoring tokens."""
    output = route.output()
    if route.train:
        return output
    train = replace(route.options, eval_capacity_factor=None)
    return rerouted(B, output, route.output(options=train, train=True).routing)


def predictor_learns_first_choices(B: Spec, route: Route) -> RouterOutput:
    """The predictor learns each token's highest-scoring expert, not the experts that take the token."""
    output = route.output()
    if "predictor" not in output.losses:
        return output
    scores = B.router_logits(route.tokens, route.params["kernel"])
    predicted = B.capacity_logits(route.tokens, **{name: route.params[name] for name in PREDICTOR})
    value = B.capacity_loss(predicted, chosen_mask(scores.real, 1) > 0)
    return with_loss(output, route.options, "predictor", value)


TAKEN = "At evaluation, an expert takes the predicted tokens instead of an equal number of the largest scores."


def variants() -> Iterator[Variant]:
    yield variant(gelu_in_the_predictor, "capacity_logits", ledger="CE-2b")
    computes = "An expert also takes a token exactly at its threshold."
    diffmoe = "theAdamColton/diffmoe"
    above: dict[str, Any] = {"predicted": lambda predicted: np.nextafter(predicted.real, 1)}
    yield fixed("taken_at_the_threshold", computes, ABOVE, "CE-3b", diffmoe, **above)
    yield variant(predictor_learns_first_choices, NAME)
    yield variant(chosen_at_evaluation, NAME, ledger="BE-2")
    yield fixed("taken_by_prediction", TAKEN, NAME, "BE-2b", diffmoe, eval_take="above")
