"""Cases of group-limited choice."""

from collections.abc import Iterator
from typing import Any

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, of_array
from moespec.conformance.author.inputs import groups_tokens, logits, rows, scores
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, fixed, variant

NAME = "group_limited_scores"

E = 8
FLAG = "expert_groups"


def cases() -> Iterator[Definition]:
    case = of_array(NAME, "scores", groups=4, limit=2)
    shape = (2, 6, E)
    three: dict[str, Any] = {"groups": 2, "limit": 1, "best": 3}
    yield case("top_3", "value", "The sum of the three best of four.", scores("gl/b", shape), FLAG, **three)
    yield case("max", "value", "The best of each group.", scores("gl/c", shape), FLAG, best=1)
    negative = logits("gl/d", shape, reach=4.0)
    purpose = "Scores below 0: 0 comes before some of the chosen groups, what is excluded comes after all."
    yield case("excluded", "value", purpose, negative, FLAG, limit=3)
    yield case("zero", "value", purpose, negative, FLAG, limit=3, outside="zero")
    purpose = "The groups by other scores than those that choose."
    yield case("by", "value", purpose, scores("gl/e", shape), FLAG, group_by=logits("gl/e/by", shape))
    tied = rows("0.5 0.25 0.25 0.5 0.75 0 0.5 0.25; 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5; -1 0 -0.5 -0.5 0 -1 0 -1")
    purpose = "Among equal groups the first is better."
    yield case("tied", "tie", purpose, groups_tokens(tied), FLAG, "tie_order", exact_ties=True)
    near = call(NAME, {"scores": "router_logits"}, groups=3, limit=1, best=1)
    yield from near_ties(NAME, near)
    size = "degenerate_size"
    yield case("one_group", "degenerate", "One group: nothing changes.", scores("gl/f", shape), size, groups=1, limit=1)
    purpose = "Groups of one expert."
    yield case("one_expert", "degenerate", purpose, scores("gl/g", shape), size, groups=E, limit=3, best=1)
    purpose = "33 groups of eight experts."
    many: dict[str, Any] = {"groups": 33, "limit": 4, "exact_ties": True}
    yield case("many_groups", "value", purpose, scores("gl/h", (1, 2, 264)), "real_size", **many)


def group_score_is_two_best(B: Spec, scores: Array, group_by: Array | None = None, **options: Any) -> Array:
    """The score of a group of experts is always the sum of its two best scores."""
    size = scores.shape[2] // options["groups"]
    return B.group_limited_scores(scores, group_by, **{**options, "best": min(2, size)})


def group_score_is_sum(B: Spec, scores: Array, group_by: Array | None = None, **options: Any) -> Array:
    """The score of a group of experts is the sum over all its experts."""
    return B.group_limited_scores(scores, group_by, **{**options, "best": scores.shape[2] // options["groups"]})


def variants() -> Iterator[Variant]:
    computes = "The score of a group of experts is always the score of its best expert."
    yield fixed("group_score_is_best", computes, NAME, "GL-1c", best=1)
    yield variant(group_score_is_two_best, NAME, ledger="GL-1")
    yield variant(group_score_is_sum, NAME, ledger="GL-1")
    computes = "Experts outside the chosen groups always have the score 0."
    yield fixed("outside_is_zero", computes, NAME, "GL-2b", "huggingface/transformers", outside="zero")
    computes = "Groups of experts are always scored by the scores that choose, including the bias."
    yield fixed("groups_by_the_chosen_scores", computes, NAME, "GL-3", group_by=None)
