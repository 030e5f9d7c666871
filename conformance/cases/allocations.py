"""Cases of Token Choice, Batch Priority Routing and Expert Choice.

Scores are inputs here, on a dyadic grid, so that ties are meant and every dtype sees the same order.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.cases.faults import SHAPE, SMALL, array_faults, fault, option, size_faults
from moespec.conformance.cases.inputs import CROWD, distinct, scores, utilities
from moespec.conformance.draw import grid, permutation
from moespec.conformance.format import Tensor
from moespec.spec.examples import TIED_SCORES

__all__ = ["cases"]

G, T, E = 2, 6, 3
TIED = np.concatenate([TIED_SCORES, [[0.25, 0.25, 0.5]]])
"""The tie matrix of the specification, and one more row."""


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _token_choice()
    yield from _batch_priority()
    yield from _expert_choice()
    yield from _token_choice_faults()
    yield from _batch_priority_faults()
    yield from _expert_choice_faults()


def _shared(algorithm: str, stage: str) -> Any:
    def case(
        name: str,
        kind: str,
        purpose: str,
        values: Tensor,
        flags: tuple[str, ...] = (),
        *,
        inputs: Any = None,
        **config: Any,
    ) -> Definition:
        gradient = None
        if kind == "gradient":
            gradient = ("weights", ("combine_scores",) if inputs else ("scores",))
        given = {"scores": values, **(inputs or {})}
        return Definition(algorithm, name, kind, purpose, given, config, (stage,), flags, gradient)

    return case


def _token_choice() -> Iterator[Definition]:
    case = _shared("token_choice", "allocation")
    drops, order = ("overflow_drop",), ("tie_order",)
    yield case("one_choice", "value", "One choice, room for all.", scores("tc/a"), choices=1, capacity=T)
    yield case("two_choices", "value", "Two choices, room for all.", scores("tc/b"), choices=2, capacity=T)
    yield case("three_choices", "value", "Three choices of six.", scores("tc/c", (G, T, 6)), choices=3, capacity=T)
    yield case(
        "crowd", "overflow", "All first choose the same expert: the first two tokens get in.",
        both(CROWD), drops, choices=1, capacity=2,
    )  # fmt: skip
    yield case(
        "first_choices_first",
        "overflow",
        "A second choice of an early token comes after the first choice of a late one.",
        both(
            [
                [0.5, 0.375, 0.125],
                [0.375, 0.5, 0.125],
                [0.125, 0.5, 0.375],
                [0.25, 0.625, 0.125],
                [0.75, 0, 0.25],
                [0.5, 0, 0.25],
            ]
        ),
        ("first_choices_first", *drops),
        choices=2,
        capacity=2,
    )
    yield case(
        "dropped_first",
        "overflow",
        "A token that its first choice drops keeps its second, with its own weight.",
        both(CROWD),
        ("no_rerouting", "no_renormalising", *drops),
        choices=2,
        capacity=2,
    )
    yield case(
        "crowd_random", "overflow", "Random scores, half of the room needed.", scores("tc/d"),
        ("first_choices_first", *drops), choices=2, capacity=2,
    )  # fmt: skip
    yield case("tied", "tie", "The tie matrix of the specification.", both(TIED), order, choices=2, capacity=2)
    yield case(
        "tied_all", "tie", "The tie matrix, every expert chosen, one slot.", both(TIED), order, choices=3, capacity=1
    )
    yield case(
        "all_equal",
        "tie",
        "Equal scores: experts 0 and 1 are chosen.",
        groups_tokens(np.full((1, 8, 8), 0.125)),
        order,
        choices=2,
        capacity=8,
    )
    yield case(
        "boundary_ties", "tie", "Coarse scores: the last choice is often one of several equals.",
        scores("tc/e", step=0.125), order, choices=2, capacity=2,
    )  # fmt: skip
    signed = np.array(
        [[-0.0, 0.0, -1.0], [0.0, -0.0, 0.0], [-1.0, -0.0, 0.0], [0.5, 0.0, -0.0], [-0.0, -0.0, 0.0], [-0.5, 0.0, -0.0]]
    )
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", both(signed), order, choices=2, capacity=T)
    near = np.full((G, T, E), 0.5) + (grid("tc/f", (G, T, E), reach=2.0, step=1.0) / 256)
    yield case(
        "neighbours", "near_tie", "Scores that are neighbours in bfloat16.", groups_tokens(near), choices=2, capacity=2
    )
    yield case(
        "negative_scores",
        "value",
        "Scores need not be positive.",
        groups_tokens(grid("tc/g", (G, T, E), reach=3.0, step=1 / 32)),
        choices=2,
        capacity=2,
    )
    other = {"combine_scores": scores("tc/h/combine")}
    yield case(
        "combine_scores",
        "value",
        "Selection by one, weights from another.",
        scores("tc/h"),
        ("combine_scores",),
        inputs=other,
        choices=2,
        capacity=2,
    )
    reverse = {"order": tensor(np.stack([np.arange(T)[::-1], permutation("tc/order", T)]), "groups tokens")}
    yield case(
        "order",
        "overflow",
        "Tokens are served in a given order; slots follow it.",
        scores("tc/i"),
        ("priority_order", *drops),
        inputs=reverse,
        choices=2,
        capacity=2,
    )
    size = ("degenerate_size",)
    yield case("one_token", "degenerate", "One token.", scores("tc/j", (1, 1, E)), size, choices=2, capacity=1)
    yield case("one_expert", "degenerate", "One expert.", scores("tc/k", (G, T, 1)), size, choices=1, capacity=2)
    yield case("all_experts", "degenerate", "Every expert is chosen.", scores("tc/l"), size, choices=E, capacity=T)
    yield case(
        "spare_room",
        "degenerate",
        "More slots than tokens.",
        scores("tc/m"),
        ("empty_slot",),
        choices=1,
        capacity=T + 2,
    )
    yield case(
        "real_size",
        "overflow",
        "196 tokens, 32 experts, two choices.",
        scores("tc/n", (1, 196, 32)),
        ("real_size", *drops),
        choices=2,
        capacity=13,
    )
    yield case(
        "gradient",
        "gradient",
        "Only the kept weights carry a gradient.",
        distinct("tc/o", (G, T, E)),
        drops,
        choices=2,
        capacity=2,
    )
    yield case(
        "gradient_combine",
        "gradient",
        "The selection carries none.",
        distinct("tc/p", (G, T, E)),
        ("combine_scores",),
        inputs=other,
        choices=2,
        capacity=2,
    )


def _batch_priority() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, values: Tensor, flags: tuple[str, ...] = ("priority_order",), **config: Any
    ) -> Definition:
        return Definition("batch_priority", name, kind, purpose, {"scores": values}, config, flags=flags)

    yield case(
        "by_max", "overflow", "The token with the highest score first.", scores("bp/a"), choices=1, capacity=2, by="max"
    )
    yield case(
        "by_max_two", "overflow", "Two choices, by the highest score.", scores("bp/b"), choices=2, capacity=2, by="max"
    )
    yield case("by_sum", "overflow", "Two choices, by their sum.", scores("bp/c"), choices=2, capacity=2, by="sum")
    apart = [
        [0.75, 0.125, 0.125],
        [0.625, 0.5, 0.0],
        [0.6875, 0.25, 0.0625],
        [0.5, 0.4375, 0.0625],
        [0.8125, 0, 0.125],
        [0.5, 0.5, 0],
    ]
    yield case(
        "max_not_sum", "value", "Maximum and sum order differently.", both(apart), choices=2, capacity=2, by="max"
    )
    yield case(
        "sum_not_max", "value", "Sum and maximum order differently.", both(apart), choices=2, capacity=2, by="sum"
    )
    yield case(
        "crowd",
        "overflow",
        "The best of those who want the same expert get in.",
        both(CROWD),
        choices=1,
        capacity=2,
        by="max",
    )
    yield case(
        "tied",
        "tie",
        "Equal priorities keep the order of the tokens.",
        both(TIED),
        ("tie_order",),
        choices=2,
        capacity=2,
        by="max",
    )
    yield case(
        "coarse",
        "tie",
        "Many equal priorities.",
        scores("bp/d", step=0.125),
        ("tie_order",),
        choices=2,
        capacity=2,
        by="sum",
    )
    yield case(
        "one_token",
        "degenerate",
        "One token.",
        scores("bp/e", (1, 1, E)),
        ("degenerate_size",),
        choices=1,
        capacity=1,
        by="max",
    )
    yield case(
        "real_size",
        "overflow",
        "196 tokens, 32 experts.",
        scores("bp/f", (1, 196, 32)),
        ("real_size", "tie_order"),
        choices=1,
        capacity=7,
        by="max",
    )


def _expert_choice() -> Iterator[Definition]:
    case = _shared("expert_choice", "allocation")
    order, size = ("tie_order",), ("degenerate_size",)
    yield case("two_slots", "value", "The best token is in slot 0.", scores("ec/a"), ("slot_order",), capacity=2)
    yield case(
        "four_slots", "value", "Half of the tokens for each expert.", scores("ec/b"), ("slot_order",), capacity=3
    )
    yield case(
        "square",
        "value",
        "As many tokens as experts: choosing along the wrong axis keeps the shape.",
        scores("ec/c", (G, E, E)),
        ("wrong_axis",),
        capacity=2,
    )
    yield case(
        "popular",
        "overflow",
        "Everyone chooses the same tokens; the others are left out.",
        both(np.arange(18).reshape(T, E)[::-1] / 32),
        ("uncovered_token",),
        capacity=2,
    )
    yield case("tied", "tie", "The tie matrix of the specification.", both(TIED), order, capacity=3)
    yield case(
        "all_equal",
        "tie",
        "Equal scores: the first tokens.",
        groups_tokens(np.full((1, 20, 3), 0.25)),
        order,
        capacity=5,
    )
    yield case(
        "coarse",
        "tie",
        "The last slot is often contested by equals.",
        scores("ec/d", (G, T, E), step=0.125),
        order,
        capacity=3,
    )
    signed = np.array(
        [[-0.0, 0.0, -0.5], [0.0, -0.0, 0.0], [0.5, -0.5, -0.0], [-0.0, 0.0, 0.0], [0.0, -0.0, -0.5], [-0.5, 0.5, -0.0]]
    )
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", both(signed), order, capacity=3)
    near = np.full((G, T, E), 0.5) + (grid("ec/e", (G, T, E), reach=2.0, step=1.0) / 256)
    yield case("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", groups_tokens(near), capacity=3)
    other = {"combine_scores": scores("ec/f/combine")}
    yield case(
        "combine_scores",
        "value",
        "Selection by one, weights from another.",
        scores("ec/f"),
        ("combine_scores",),
        inputs=other,
        capacity=3,
    )
    holes = np.where(grid("ec/g/holes", (G, T, E)) > 0.25, np.asarray(scores("ec/g").array), 0.0)
    yield case(
        "zeros_kept",
        "value",
        "Slots that only scores of 0 could fill are filled by the lowest tokens.",
        groups_tokens(holes),
        ("zero_score_slots",),
        capacity=3,
    )
    yield case(
        "zeros_dropped",
        "value",
        "The same slots left empty.",
        groups_tokens(holes),
        ("zero_score_slots", "empty_slot"),
        capacity=3,
        drop_zero=True,
    )
    yield case("one_token", "degenerate", "One token.", scores("ec/h", (1, 1, E)), size, capacity=1)
    yield case("one_expert", "degenerate", "One expert.", scores("ec/i", (G, T, 1)), size, capacity=3)
    yield case("all_tokens", "degenerate", "Every expert takes every token.", scores("ec/j"), size, capacity=T)
    yield case(
        "real_size",
        "value",
        "196 tokens, 32 experts, 12 slots.",
        scores("ec/k", (1, 196, 32)),
        ("real_size", "tie_order"),
        capacity=12,
    )
    yield case(
        "real_size_six",
        "value",
        "196 tokens, 32 experts, 6 slots.",
        scores("ec/n", (1, 196, 32)),
        ("real_size", "uncovered_token"),
        capacity=6,
    )
    yield case("gradient", "gradient", "The chosen scores carry a gradient.", distinct("ec/l", (G, T, E)), capacity=3)
    yield case(
        "gradient_combine",
        "gradient",
        "The selection carries none.",
        distinct("ec/m", (G, T, E)),
        ("combine_scores",),
        inputs=other,
        capacity=3,
    )


def _token_choice_faults() -> Iterator[Definition]:
    name, stage, config = "token_choice", "allocation", {"choices": 2, "capacity": 2}
    chosen = {"scores": scores("negative/scores", SHAPE)}
    yield from array_faults(name, stage, "scores", chosen, config)
    for case, field, value in (
        ("no_choice", "choices", 0),
        ("many_choices", "choices", SMALL.experts + 1),
        ("no_slot", "capacity", 0),
    ):
        yield option(name, stage, case, field, chosen, config, **{field: value})
    paired = {**chosen, "combine_scores": scores("negative/combine", SHAPE)}
    yield from array_faults(name, stage, "combine_scores", paired, config, "combine_")
    fewer = {"combine_scores": scores("negative/combine/few", (SMALL.groups, SMALL.tokens - 1, SMALL.experts))}
    yield fault(name, stage, "combine_shape", "ShapeError", "combine_scores", paired, config, wrong_inputs=fewer)

    order = np.tile(np.arange(SMALL.tokens), (SMALL.groups, 1))
    ordered = {**chosen, "order": tensor(order, "groups tokens")}
    for case, error, wrong, purpose in (
        ("dtype", "DtypeError", order.astype(float), ""),
        ("shape", "ShapeError", order[:, :-1], ""),
        ("twice", "ContractError", np.where(order == 1, 0, order), "The order holds a token twice."),
    ):
        yield fault(
            name, stage, f"order_{case}", error, "order", ordered, config,
            wrong_inputs={"order": tensor(wrong, "groups tokens")}, purpose=purpose,
        )  # fmt: skip

    kept = {
        "scores": utilities("keep/negative", SHAPE),
        "keep": tensor((grid("keep/some", (SMALL.groups, SMALL.tokens, 2)) > 0).astype(int), "groups tokens choices"),
    }
    yield from size_faults(name, stage, kept, config, keep=2)


def _batch_priority_faults() -> Iterator[Definition]:
    name, stage, chosen = "batch_priority", "priority", {"scores": scores("negative/scores", SHAPE)}
    yield from array_faults(name, stage, "scores", chosen, {"by": "max", "choices": 1})
    yield option(name, stage, "by", "by", chosen, {"by": "max", "choices": 1}, by="mean")
    yield option(name, stage, "many_choices", "choices", chosen, {"by": "sum", "choices": 2}, choices=SMALL.experts + 1)


def _expert_choice_faults() -> Iterator[Definition]:
    name, stage, config = "expert_choice", "allocation", {"capacity": 2}
    chosen = {"scores": scores("negative/scores", SHAPE)}
    yield from array_faults(name, stage, "scores", chosen, config)
    for case, wrong in (("no_slot", 0), ("many_slots", SMALL.tokens + 1)):
        yield option(name, stage, case, "capacity", chosen, config, capacity=wrong)
    paired = {**chosen, "combine_scores": scores("negative/combine", SHAPE)}
    yield from array_faults(name, stage, "combine_scores", paired, config, "combine_")
    yield from size_faults(name, stage, paired, config, combine_scores=1)
