"""Cases of importance-score routing: the order and the allocation on given scores, then the router step by step."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens
from moespec.conformance.cases.faults import (
    SHAPE,
    SMALL,
    array_faults,
    option,
    router_faults,
    router_inputs,
    size_faults,
)
from moespec.conformance.cases.inputs import CROWD, distinct, scores
from moespec.conformance.cases.routers import case
from moespec.conformance.draw import grid
from moespec.conformance.format import Tensor

__all__ = ["cases"]

ROW = "importance_score"
T, E = 10, 3


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _allocation()
    yield from _router()
    yield from _faults()


def settings(tokens: int, experts: int, **fields: Any) -> dict[str, Any]:
    """The configuration of the router, of which the allocation reads the fields that concern it."""
    return {"tokens": tokens, "experts": experts, "width": 1, "choices": 1, **fields}


def _allocation() -> Iterator[Definition]:
    def given(
        name: str,
        kind: str,
        purpose: str,
        values: Tensor,
        flags: tuple[str, ...] = ("importance_cut",),
        *,
        combine: Tensor | None = None,
        **fields: Any,
    ) -> Definition:
        tokens, experts = values.array.shape[1:]
        inputs = {"scores": values} if combine is None else {"scores": values, "combine_scores": combine}
        gradient = ("weights", (list(inputs)[-1],)) if kind == "gradient" else None
        stages = ("allocation",) if gradient else ("priority", "allocation")
        config = {"router": settings(tokens, experts, **fields)}
        return Definition(ROW, name, kind, purpose, inputs, config, stages, flags, gradient)

    shape = (2, T, E)
    yield given("a_tenth", "value", "One of ten tokens is removed: floor(0.1 T).", distinct("is/a", shape))
    yield given("not_yet_a_tenth", "value", "Of nine tokens none is removed.", distinct("is/b", (2, 9, E)))
    yield given(
        "a_quarter",
        "overflow",
        "Two of ten are removed before anyone chooses, and the capacity is that of eight.",
        distinct("is/c", shape),
        ("importance_cut", "overflow_drop"),
        drop=0.25,
        capacity_factor=0.75,
    )
    yield given(
        "two_choices",
        "overflow",
        "Who is removed takes no slot with its first choice that others want with their second.",
        distinct("is/d", shape),
        ("importance_cut", "first_choices_first", "overflow_drop"),
        choices=2,
        drop=0.5,
        capacity_factor=0.75,
    )
    yield given(
        "crowd",
        "overflow",
        "All choose the same expert: the most important get in.",
        both(CROWD),
        ("importance_cut", "priority_order", "overflow_drop"),
        drop=0.5,
    )
    yield given(
        "nothing_removed",
        "overflow",
        "With a share of 0 it is Batch Priority Routing.",
        distinct("is/e", shape),
        ("importance_cut", "priority_order"),
        drop=0.0,
        capacity_factor=0.5,
    )
    ties = ("importance_cut", "tie_order")
    yield given(
        "all_equal",
        "tie",
        "Of equals the higher indices are removed.",
        groups_tokens(np.full((2, 20, E), 0.25)),
        ties,
        drop=0.25,
    )
    yield given(
        "coarse", "tie", "Equals at the border.", scores("is/f", (2, 20, E), step=0.125), ties, drop=0.3, choices=2
    )
    near = np.full(shape, 0.5) + grid("is/g", shape, reach=2.0, step=1.0) / 256
    yield given("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", groups_tokens(near), drop=0.3)
    yield given(
        "one_token", "degenerate", "One token is never removed.", scores("is/h", (1, 1, E)), ("degenerate_size",),
        drop=0.75,
    )  # fmt: skip
    yield given(
        "one_left", "degenerate", "All but one are removed.", distinct("is/i", (2, 5, E)), ("degenerate_size",),
        drop=0.875, choices=2,
    )  # fmt: skip
    yield given(
        "gradient_scores", "gradient", "Only kept weights carry one; the order carries none.", distinct("is/j", shape),
        ("importance_cut", "stop_gradient"), drop=0.25, choices=2, capacity_factor=0.5,
    )  # fmt: skip
    weights = scores("is/k/combine", shape)
    yield given(
        "combine_scores", "overflow", "Some scores sort and choose, others are the weights.", distinct("is/k", shape),
        ("importance_cut", "overflow_drop"), combine=weights, drop=0.25, choices=2, capacity_factor=0.5,
    )  # fmt: skip
    yield given(
        "gradient_combine_scores", "gradient", "The weights carry the gradient, what sorts and chooses none.",
        distinct("is/k", shape), ("importance_cut", "stop_gradient"), combine=weights, drop=0.25, choices=2,
        capacity_factor=0.5,
    )  # fmt: skip


def _router() -> Iterator[Definition]:
    sizes, cut = (6, E, 3), ("importance_cut",)
    flags = (*cut, "generated_code")
    yield case(ROW, "values", "value", "The router with its default share.", flags, sizes=(T, E, 4))
    yield case(
        ROW, "half", "overflow", "Half are removed.", (*cut, "overflow_drop"), sizes=sizes, drop=0.5, choices=2,
        capacity_factor=0.75,
    )  # fmt: skip
    yield case(
        ROW, "noise", "value", "Noise enters the logits, which sort and choose; in training nothing else changes.",
        (*cut, "noise_inside"), sizes=sizes, noise=True, drop=0.25,
    )  # fmt: skip
    yield case(
        ROW, "losses", "value", "The losses see all tokens, also those that are removed.", (*cut, "noise_inside"),
        sizes=sizes, noise=True, drop=0.25, importance_weight=0.5, load_weight=0.25, balance_weight=0.125,
        z_weight=0.0625, steps=False,
    )  # fmt: skip
    yield case(
        ROW, "multiple", "value", "The capacity of those that are left, rounded up to a multiple of 2.",
        (*cut, "capacity_rounding"), sizes=sizes, drop=0.25, multiple_of=2, steps=False,
    )  # fmt: skip
    yield case(ROW, "zero_kernel", "tie", "A router that starts at 0.", ("tie_order",), zero=True, sizes=(6, 4, 3))
    yield case(
        ROW, "one_expert", "degenerate", "One expert.", ("degenerate_size",), sizes=(6, 1, 3), drop=0.25, steps=False
    )
    yield case(
        ROW, "gradient", "gradient", "By tokens, kernel, noise and expert weights, with removed and dropped tokens.",
        ("noise_inside", "stop_gradient", *cut), sizes=sizes, noise=True, drop=0.25, capacity_factor=0.75,
    )  # fmt: skip


def _faults() -> Iterator[Definition]:
    stage, (_, t, e, _) = "allocation", SMALL
    given = {"scores": scores("negative/importance", SHAPE)}
    config: dict[str, Any] = {"router": settings(t, e, drop=0.25), "capacity": 3}
    yield from array_faults(ROW, stage, "scores", given, config)
    faults: tuple[tuple[str, str, str, Any], ...] = (
        ("drop_all", stage, "drop", 1.0),
        ("drop_less", stage, "drop", -0.25),
        ("many_choices", stage, "choices", e + 1),
        ("drop_more", "priority", "drop", 1.5),
    )
    for name, where, field, value in faults:
        edited = {**config["router"], field: value}
        yield option(ROW, where, name, field, given, config, router=edited)
    yield option(ROW, stage, "no_slot", "capacity", given, config, capacity=0)
    weighed = {**given, "combine_scores": scores("negative/importance/combine", SHAPE)}
    yield from array_faults(ROW, stage, "combine_scores", weighed, config, "combine_")
    yield from size_faults(ROW, stage, weighed, config, combine_scores=1)
    yield from router_faults(ROW, router_inputs(), choices=(1, e + 1), drop=(0.25, 1.0))
