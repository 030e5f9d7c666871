"""Cases of a variable number of experts per token: the masks, the controllers, and the router `variable_budget`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import distinct, groups_tokens, logits, rows, scores
from moespec.conformance.author.routers import LAYER, router_case
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Tensor

NAME, MASKS, CONTROL, FLAG = "variable_budget", "budget_masks", "budget_control", "variable_budget"
TIED = groups_tokens(rows("0.5 0.25 0.25; 0.25 0.25 0.5; 0.75 0.125 0.125; 0.375 0.375 0.25"))


def _controller(change: float, integral: float) -> Tensor:
    return tensor(np.array([change, integral], np.float32), "pair")


def _cutoffs(values: list[float], steps: float) -> Tensor:
    return tensor(np.array([values, [steps] * len(values)], np.float32), "pair experts")


def cases() -> Iterator[Definition]:
    yield from _parts()
    case = partial(router_case, NAME)
    top_p: dict[str, Any] = {"p": 0.5, "choices": 2, "gain": 0.5, "integral_gain": 0.25, "train": True}
    top_p["state"] = {"controller": _controller(0.125, 0.5)}
    purpose = "Top-p, whose p the controller changes, with the entropy of the probabilities."
    yield case("top_p", "value", purpose, FLAG, "generated_code", entropy_weight=0.5, **top_p)
    few: dict[str, Any] = {**top_p, "gate": "normalized_softmax", "capacity_factor": 0.75}
    yield case("normalized", "overflow", "Weights that sum to 1, and few slots.", FLAG, "renormalised", **few)
    pooled: dict[str, Any] = {"budget": "pooled", "choices": 2, "state": {"cutoffs": _cutoffs([0.25] * 3, 2.0)}}
    pooled["cutoff_decay"] = 0.75
    yield case("pooled", "value", "Twice as many pairs as tokens, of each group.", FLAG, train=True, **pooled)
    yield case("eval_pooled", "value", "The same at evaluation.", FLAG, train=False, gate="sigmoid", **pooled)
    race: dict[str, Any] = {**pooled, "gate": "identity", "eval_cutoff": True}
    yield case("eval_cutoff", "value", "At evaluation, all logits above the cutoff.", FLAG, train=False, **race)
    threshold: dict[str, Any] = {"budget": "threshold", "choices": 2, "warmup_steps": 4, "cutoff_decay": 0.75}
    for name, steps, train in (("warmup", 3.0, True), ("threshold", 4.0, True), ("eval_threshold", 3.0, False)):
        state = {"cutoffs": _cutoffs([-0.25, 0.5, 0.0], steps)}
        yield case(name, "value", f"After {steps:g} steps.", FLAG, train=train, state=state, **threshold)
    purpose = "Equal scores: the first tokens' first experts."
    yield case("zero_kernel", "tie", purpose, "tie_order", zero=True, train=True, **pooled)
    small: dict[str, Any] = {"sizes": (4, 3, 3), "by": LAYER}
    purpose = "With the entropy and divided weights."
    yield case("gradient", "gradient", purpose, FLAG, "stop_gradient", entropy_weight=0.5, losses=True, **small, **few)
    small |= {"losses": False, "train": True}
    yield case("gradient_pooled", "gradient", "By the logits.", FLAG, "stop_gradient", **small, **race)


def _parts() -> Iterator[Definition]:
    case = partial(single, MASKS, "top_p_mask")
    purpose = "Sums that are exactly p, or tied scores."
    yield case("top_p", "tie", purpose, FLAG, scores=TIED, controller=_controller(0.25, 3.0), p=0.5, exact_ties=True)
    least: dict[str, Any] = {"scores": distinct("vb/a", (2, 5, 3)), "controller": _controller(-2.0, 0.0), "p": 1.0}
    yield case("top_p_least", "value", "A threshold below 0: one expert for each token.", FLAG, **least)
    case = partial(single, MASKS, "pooled_mask")
    yield case(
        "pooled",
        "tie",
        "The last of four chosen scores is tied.",
        FLAG,
        "tie_order",
        scores=TIED,
        choices=1,
        exact_ties=True,
    )
    case = partial(single, MASKS, "cutoff_mask", scores=TIED, cutoffs=_cutoffs([0.5, 0.25, 0.125], 2.0))
    yield case("cutoff", "tie", "Scores at the cutoff.", FLAG, exact_ties=True)
    yield case("warmup", "tie", "The two best.", FLAG, capacity=2, warmup_steps=3, exact_ties=True)
    mask = tensor(np.asarray(logits("vb/b").array > -1), "groups tokens experts")
    yield single(MASKS, "kept_scores", "kept", "gradient", "By the scores.", FLAG, scores=scores("vb/d"), mask=mask)
    yield single(CONTROL, "budget_excess", "excess", "value", "Two groups.", FLAG, mask=mask, choices=1)
    yield single(CONTROL, "pooled_cutoff", "pooled", "value", "Two groups.", FLAG, scores=scores("vb/c"), choices=2)
    reached = tensor(np.array([[1.5, -0.25, 2.0], [2.0, 2.0, 2.0]], np.float32), "pair experts")
    for name, steps in (("first", 0.0), ("later", 2.0)):
        state: dict[str, Any] = {"cutoffs": _cutoffs([0.5, 0.0, 0.25], steps), "reached": reached}
        yield single(CONTROL, "renewed_cutoffs", name, "value", f"After {steps:g} steps.", FLAG, **state, decay=0.75)
    now: dict[str, Any] = {"controller": _controller(0.25, 0.5), "budget": _controller(-3.0, 12.0), "experts": 4}
    gains: dict[str, Any] = {"gain": 0.5, "integral_gain": 0.125}
    yield single(CONTROL, "renewed_controller", "controller", "value", "Too few experts.", FLAG, **now, **gains)


def sum_of_p(B: Spec, scores: Array, controller: Array, *, p: float) -> Array:
    """Top-p adds experts until the sum of their scores is at least p."""
    return B.top_p_mask(scores, np.nextafter(np.real(controller) + p, -9) - p, p=p)


def tied_pairs(B: Spec, scores: Array, *, choices: int) -> Array:
    """All pairs that are tied with the last chosen pair are chosen, too."""
    last = np.sort(scores.real.reshape(len(scores), -1), axis=1)[:, -choices * scores.shape[1]]
    return scores.real >= last[:, None, None]


def average_from_zero(B: Spec, cutoffs: Array, reached: Array, *, decay: float) -> Array:
    """The moving average of the cutoffs starts at 0 and is not corrected."""
    moved = B.moved_thresholds(cutoffs[0], reached, decay=decay)
    return np.stack([moved, cutoffs[1] + 1])


def added_to_the_current_p(B: Spec, controller: Array, budget: Array, **options: Any) -> Array:
    """The controller changes the current p instead of the initial p."""
    return B.renewed_controller(controller, budget, **options) + np.array([1.0, 0.0]) * controller


def variants() -> Iterator[Variant]:
    yield variant(sum_of_p, "top_p_mask", ledger="VB-1b")
    yield variant(tied_pairs, "pooled_mask", ledger="VB-2b")
    above: dict[str, Any] = {"cutoffs": lambda cutoffs: np.nextafter(cutoffs.real, [[-9.0], [9.0]])}
    computes, et = "An expert also takes a token exactly at its cutoff.", "MasterGodzilla/Expert-Threshold-Routing"
    yield fixed("taken_at_the_cutoff", computes, "cutoff_mask", "VB-3b", et, **above)
    yield variant(average_from_zero, "renewed_cutoffs", ledger="VB-4b")
    yield variant(added_to_the_current_p, "renewed_controller", ledger="VB-5b")
    yield fixed("no_warmup", "An expert uses its cutoff from the first step on.", NAME, "VB-7b", warmup_steps=0)
    yield fixed("weights_of_the_logits", "The combine weights are the logits.", NAME, "VB-8b", gate="identity")
    computes = "The combine weights of a token are divided by their sum."
    yield fixed("weights_of_sum_1", computes, NAME, "VB-9b", gate="normalized_softmax")
