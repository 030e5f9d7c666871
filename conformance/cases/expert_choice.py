"""Cases of Expert Choice."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, of_array
from moespec.conformance.author.inputs import TIED, both, distinct, grid, groups_tokens, scores
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, below_zero, fixed, heap_order, kept, renormalised, variant

NAME = "expert_choice"
G, T, E = 2, 6, 3

case = of_array(NAME, "scores", capacity=3)
ORDER, SIZE, BEST, LEFT = "tie_order", "degenerate_size", "slot_order", "uncovered_token"


def cases() -> Iterator[Definition]:
    yield from _values()
    yield from _weights()
    yield from _ties()
    yield from _sizes()


def _values() -> Iterator[Definition]:
    yield case("two_slots", "value", "The best token is in slot 0.", scores("ec/a"), BEST, capacity=2)
    purpose = "As many tokens as experts: choosing along the wrong axis keeps the shape."
    yield case("square", "value", purpose, scores("ec/c", (G, E, E)), "wrong_axis", capacity=2)
    purpose = "Every expert chooses the same tokens; the others are left out."
    yield case("popular", "overflow", purpose, both(np.arange(18).reshape(T, E)[::-1] / 32), LEFT, capacity=2)
    yield case("gradient", "gradient", "The chosen scores carry a gradient.", distinct("ec/l", (G, T, E)))


def _weights() -> Iterator[Definition]:
    """Returns cases with separate scores for the combine weights, and cases in which some slots have only tokens with a score of 0 left."""
    other: dict[str, Any] = {"combine_scores": scores("ec/f/combine")}
    purpose = "Selection by one, weights from another."
    yield case("combine_scores", "value", purpose, scores("ec/f"), "combine_scores", **other)
    holes = groups_tokens(np.where(grid("ec/g/holes", (G, T, E)) > 0.25, scores("ec/g").array, 0.0))
    purpose = "Slots that only scores of 0 could fill are filled by the lowest tokens."
    yield case("zeros_kept", "value", purpose, holes, "zero_score_slots")
    purpose = "The same slots left empty."
    yield case("zeros_dropped", "value", purpose, holes, "zero_score_slots", "empty_slot", drop_zero=True)
    signs = groups_tokens([[[0.5, -0.5], [2.0**-60, 0.0], [0.0, 0.25], [-0.25, -(2.0**-60)]]])
    weights = groups_tokens([[[0.0, 0.5], [0.25, 0.5], [0.75, -0.5], [0.5, 0.25]]])
    purpose = "What leaves a slot empty is a score of at most 0, neither a small one nor the weight."
    signed_drop: dict[str, Any] = {"drop_zero": True, "combine_scores": weights}
    yield case("signs_dropped", "value", purpose, signs, "zero_score_slots", "empty_slot", **signed_drop)


def _ties() -> Iterator[Definition]:
    yield case("tied", "tie", "The tie matrix of the specification.", both(TIED), ORDER)
    equal = groups_tokens(np.full((1, 20, 3), 0.25))
    yield case("all_equal", "tie", "Equal scores: the first tokens.", equal, ORDER, capacity=5)
    purpose = "The last slot is often contested by equals."
    yield case("coarse", "tie", purpose, scores("ec/d", step=0.125), ORDER)
    signed = np.array(
        [[-0.0, 0.0, -0.5], [0.0, -0.0, 0.0], [0.5, -0.5, -0.0], [-0.0, 0.0, 0.0], [0.0, -0.0, -0.5], [-0.5, 0.5, -0.0]]
    )
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", both(signed), ORDER)
    near = np.full((G, T, E), 0.5) + (grid("ec/e", (G, T, E), reach=2.0, step=1.0) / 256)
    yield case("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", groups_tokens(near))
    yield from near_ties(NAME, call(NAME, {"scores": "router_logits"}, capacity=3))


def _sizes() -> Iterator[Definition]:
    yield case("one_token", "degenerate", "One token.", scores("ec/h", (1, 1, E)), SIZE, capacity=1)
    real = (1, 196, 32)
    purpose = "196 tokens, 32 experts, 12 slots."
    yield case("real_size", "value", purpose, scores("ec/k", real), "real_size", ORDER, capacity=12)
    purpose = "Tokens that bfloat16 and float16 cannot number are the best."
    late = np.full((2100, 1), 0.25)
    late[[257, 2049, 2099]] = [[0.5], [0.75], [0.625]]
    yield case("many_tokens", "value", purpose, groups_tokens(late), "real_size", BEST)


def ties_to_the_higher_token(B: Spec, scores: Array, *, combine_scores: Array | None = None, **options: Any) -> Any:
    """Among equal scores, an expert chooses the token of higher index."""
    weights = None if combine_scores is None else combine_scores[:, ::-1]
    routing = B.expert_choice(scores[:, ::-1], combine_scores=weights, **options)
    last = routing.tokens - 1
    return routing._replace(token=np.where(routing.token > last, routing.token, last - routing.token))


def chosen_in_heap_order(
    B: Spec, scores: Array, *, capacity: int, combine_scores: Array | None = None, drop_zero: bool = False
) -> Any:
    """An expert breaks ties between equal scores by an unstable sort."""
    chosen = heap_order(scores, 1)[:, :capacity]  # (groups, slots, experts)
    weights = np.take_along_axis(scores if combine_scores is None else combine_scores, chosen, 1)
    stays = (np.take_along_axis(scores, chosen, 1).real > 0) | (not drop_zero)
    token = np.where(stays, chosen, scores.shape[1]).astype(np.int32)
    return B.SlotRouting(token.swapaxes(1, 2), np.where(stays, weights, 0).swapaxes(1, 2), None, scores.shape[1])


def capacity_cut_to_the_tokens(B: Spec, scores: Array, *, capacity: int, **options: Any) -> Any:
    """A capacity above the number of tokens is reduced to the number of tokens instead of rejected."""
    return B.expert_choice(scores, capacity=min(capacity, scores.shape[1]), **options)


def experts_renormalised(B: Spec, scores: Array, **options: Any) -> Any:
    """The weights of a token are divided by their sum over the experts that chose the token."""
    return renormalised(B.expert_choice(scores, **options))


def positive_zero_before_negative(B: Spec, scores: Array, *, combine_scores: Array | None = None, **more: Any) -> Any:
    """An expert takes a score of 0.0 before a score of -0.0, although the two are equal."""
    weights = scores if combine_scores is None else combine_scores
    return B.expert_choice(below_zero(scores), combine_scores=weights, **more)


def small_scores_left_out(B: Spec, scores: Array, *, combine_scores: Array | None = None, **more: Any) -> Any:
    """If slots with a score of 0 must stay empty, slots with a score of at most 1e-6 also stay empty."""
    weights = scores if combine_scores is None else combine_scores
    small = np.where(scores.real > 1e-6, scores, np.minimum(scores.real, 0.0)) if more.get("drop_zero") else scores
    return B.expert_choice(small, combine_scores=weights, **more)


def negative_scores_taken_in(B: Spec, scores: Array, *, drop_zero: bool = False, **options: Any) -> Any:
    """If slots with a score of at most 0 must stay empty, only slots with a score of exactly 0 stay empty."""
    right = B.expert_choice(scores, drop_zero=drop_zero, **options)
    every = B.expert_choice(scores, **options)
    chosen = np.take_along_axis(scores.real.swapaxes(1, 2), np.minimum(every.token, every.tokens - 1), 2)
    return kept(every, chosen != 0) if drop_zero else right


def zero_weights_left_out(
    B: Spec, scores: Array, *, combine_scores: Array | None = None, drop_zero: bool = False, **options: Any
) -> Any:
    """If slots with a score of at most 0 must stay empty, slots with a combine weight of at most 0 stay empty instead."""
    right = B.expert_choice(scores, combine_scores=combine_scores, drop_zero=drop_zero, **options)
    if not drop_zero or combine_scores is None:
        return right
    every = B.expert_choice(scores, combine_scores=combine_scores, **options)
    return kept(every, every.weight.real > 0)


def variants() -> Iterator[Variant]:
    yield variant(small_scores_left_out, NAME, ledger="EC-2b")
    yield variant(negative_scores_taken_in, NAME, ledger="EC-2b")
    yield variant(zero_weights_left_out, NAME, ledger="EC-2b")
    yield variant(ties_to_the_higher_token, NAME, ledger="EC-1b")
    yield variant(chosen_in_heap_order, NAME, ledger="EC-1c")
    computes = "Slots that only tokens of score 0 could fill always stay empty."
    yield fixed("zero_scores_left_out", computes, NAME, "EC-2b", drop_zero=True)
    computes = "Slots that only tokens of score 0 could fill are always filled."
    yield fixed("zero_scores_taken_in", computes, NAME, "EC-2b", drop_zero=False)
    yield variant(capacity_cut_to_the_tokens, NAME, ledger="EC-3b")
    yield variant(experts_renormalised, NAME, ledger="SA-3b")
    computes = "The combine weights are always the scores by which the experts chose."
    yield fixed("choosers_weights_ignored", computes, NAME, "RT-2b", combine_scores=None)
    yield variant(positive_zero_before_negative, NAME, ledger="EC-1", who="jax")
