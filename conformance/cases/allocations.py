"""Cases of Token Choice, Batch Priority Routing, Expert Choice and soft routing.

Scores are inputs here, on a dyadic grid, so that ties are meant and every dtype sees the same order.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, both, groups_tokens, tensor
from moespec.conformance.draw import grid, permutation
from moespec.conformance.format import Tensor
from moespec.spec.examples import TIED_SCORES

__all__ = ["cases", "distinct", "scores"]

G, T, E, D = 2, 6, 3, 4
CROWD = np.array(
    [
        [0.75, 0.25, 0],
        [0.875, 0, 0.125],
        [0.5, 0.25, 0.25],
        [0.625, 0, 0.375],
        [0.75, 0.125, 0.125],
        [0.5, 0.375, 0.125],
    ]
)
"""Everyone's first choice is expert 0."""
TIED = np.concatenate([TIED_SCORES, [[0.25, 0.25, 0.5]]])
"""The tie matrix of the specification, and one more row."""


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _token_choice()
    yield from _batch_priority()
    yield from _expert_choice()
    yield from _soft()


def scores(key: str, shape: tuple[int, ...] = (G, T, E), step: float = 1 / 256) -> Tensor:
    """Positive scores on a grid, nearly all different."""
    return groups_tokens(grid(key, shape, reach=0.46875, step=step, centre=0.5))


def distinct(key: str, shape: tuple[int, int, int]) -> Tensor:
    """Positive scores that are all different within a group."""
    count = shape[1] * shape[2]
    return groups_tokens(
        np.stack([(permutation(f"{key}/{g}", count).reshape(shape[1:]) + 8) / 64 for g in range(shape[0])])
    )


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


def _soft() -> Iterator[Definition]:
    def case(
        name: str,
        kind: str,
        purpose: str,
        flags: tuple[str, ...] = (),
        *,
        shape: tuple[int, ...] = (G, 6, D, 3, 2),
        scale: float | None = 1.0,
        tokens: Any = None,
        slots: Any = None,
        **config: Any,
    ) -> Definition:
        g, t, d, e, c = shape
        inputs = {
            "tokens": tensor(grid(f"soft/{name}", (g, t, d)) if tokens is None else tokens, "groups tokens width"),
            "slots": tensor(
                grid(f"soft/{name}/slots", (d, e, c)) if slots is None else slots, "width experts capacity"
            ),
        }
        if scale is not None:
            inputs["scale"] = tensor(np.float32(scale), "")
        gradient = None
        if kind == "gradient":
            gradient = (config.pop("of"), ("tokens", "slots", "scale"))
        return Definition("soft_routing", name, kind, purpose, inputs, config, (), flags, gradient)

    joint, forms = ("joint_softmax",), ("norm_form",)
    yield case("values", "value", "Dispatch sums to 1 over tokens, combine over all slots together.", joint)
    yield case("scale", "value", "A scale of 2.5 sharpens both.", joint, scale=2.5)
    yield case("square", "value", "As many tokens as experts and slots.", joint, shape=(G, 4, D, 4, 4))
    small = grid("soft/small", (G, 6, D), reach=0.0078125, step=0.00048828125)
    yield case("small_paper", "value", "Tokens so short that epsilon counts, in the paper's form.", forms, tokens=small)
    yield case(
        "small_rsqrt",
        "value",
        "The same tokens in the form of the public code.",
        forms,
        tokens=small,
        norm_form="rsqrt",
    )
    empty = grid("soft/empty", (G, 6, D))
    empty[:, 2] = 0
    blank = grid("soft/empty/slots", (D, 3, 2))
    blank[:, 1, 0] = 0
    yield case(
        "zero_token", "degenerate", "A token and a slot of norm 0 have logits 0.", forms, tokens=empty, slots=blank
    )
    yield case(
        "zero_token_rsqrt",
        "degenerate",
        "The same in the other form.",
        forms,
        tokens=empty,
        slots=blank,
        norm_form="rsqrt",
    )
    yield case(
        "unnormalised",
        "value",
        "Without normalisation the scale is not used.",
        ("norm_form",),
        scale=2.0,
        normalize=False,
    )
    yield case("scale_zero", "tie", "A scale of 0 gives uniform weights.", scale=0.0)
    yield case("default_scale", "value", "The scale is 1 if it is not given.", scale=None)
    for first, second in (("soft", "uniform"), ("uniform", "soft"), ("uniform", "uniform")):
        yield case(
            f"{first}_{second}",
            "value",
            f"Ablation: dispatch {first}, combine {second}.",
            ("ablation",),
            dispatch=first,
            combine=second,
        )
    yield case(
        "uniform_more_slots",
        "value",
        "Ablation: dispatch is one part in the number of tokens, combine in that of slots, which is larger.",
        ("ablation",),
        shape=(G, 5, D, 3, 2),
        dispatch="uniform",
        combine="uniform",
    )
    yield case(
        "identity", "value", "Ablation: token t in slot t.", ("ablation",), dispatch="identity", combine="identity"
    )
    size = ("degenerate_size",)
    yield case("one_token", "degenerate", "One token fills every slot.", size, shape=(1, 1, D, 3, 2))
    yield case("one_slot", "degenerate", "One expert with one slot.", size, shape=(G, 6, D, 1, 1))
    yield case("gradient_dispatch", "gradient", "Through the softmax over tokens.", scale=1.5, of="dispatch")
    yield case("gradient_combine", "gradient", "Through the softmax over slots.", scale=1.5, of="combine")
    yield case("gradient_rsqrt", "gradient", "In the other form.", scale=1.5, of="combine", norm_form="rsqrt")
    alone: dict[str, Any]
    for name, other in (("dispatch", "combine"), ("combine", "dispatch")):
        alone = {"of": name, other: "uniform", "normalize": False}
        purpose = f"Of {name}, unnormalised, with {other} uniform."
        yield case(f"gradient_{name}_alone", "gradient", purpose, ("ablation",), scale=1.5, **alone)
    origin = grid("soft/origin", (G, 6, D))
    origin[:, 1] = 0
    yield case(
        "gradient_zero_token",
        "gradient",
        "At a token of norm 0 the norm counts as a constant.",
        ("norm_form",),
        tokens=origin,
        of="dispatch",
    )
