"""Cases of Batch Priority Routing: the order in which tokens take slots, and Token Choice in this order."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed
from moespec.conformance.author.inputs import CROWD, TIED, both, rows, scores
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, below_zero, fixed, heap_order, variant
from moespec.conformance.format import Tensor

NAME = "batch_priority"
E = 3


def case(name: str, kind: str, purpose: str, values: Tensor, *flags: str, by: str = "max", choices: int = 2,
         capacity: int = 2) -> Definition:  # fmt: skip
    """Returns a case that computes the order of the tokens and then runs Token Choice in this order."""
    order = call(NAME, {"scores": "scores"}, by=by, choices=choices)
    ordered = call("token_choice", {"scores": "scores", "order": NAME}, choices=choices, capacity=capacity)
    inputs = {"scores": values}
    return composed(NAME, name, kind, purpose, *(flags or ("priority_order",)), inputs=inputs, stages=(order, ordered))


def cases() -> Iterator[Definition]:
    ties = "tie_order"
    apart = rows("0.75 0.125 0.125; 0.625 0.5 0.0; 0.6875 0.25 0.0625; 0.5 0.4375 0.0625; 0.8125 0 0.125; 0.5 0.5 0")
    yield case("max_not_sum", "value", "Maximum and sum order differently.", both(apart))
    yield case("sum_not_max", "value", "Sum and maximum order differently.", both(apart), by="sum")
    purpose = "The best of those who want the same expert get in."
    yield case("crowd", "overflow", purpose, both(CROWD), choices=1)
    yield case("tied", "tie", "Equal priorities keep the order of the tokens.", both(TIED), ties)
    zeros = both([[-0.0, -0.5, -0.25], [0.0, -0.25, -0.5], [-0.5, -0.0, -0.25], [-0.25, -0.5, 0.0]])
    yield case("signed_zero", "tie", "Zero and minus zero are equal priorities.", zeros, ties, choices=1, capacity=1)
    yield case("coarse", "tie", "Many equal priorities.", scores("bp/d", step=0.125), ties, by="sum")
    yield from near_ties(NAME, call(NAME, {"scores": "router_logits"}))
    alone = scores("bp/e", (1, 1, E))
    yield case("one_token", "degenerate", "One token.", alone, "degenerate_size", choices=1, capacity=1)
    real = scores("bp/f", (1, 196, 32))
    yield case("real_size", "overflow", "196 tokens, 32 experts.", real, "real_size", ties, choices=1, capacity=7)


def _priority(scores: Array, by: str, choices: int) -> Any:
    """Returns the priority of each token (groups, tokens)."""
    return -np.sort(-scores.real, axis=2)[..., : 1 if by == "max" else choices].sum(axis=2)


def least_important_first(B: Spec, scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """Tokens take slots in order from the lowest to the highest priority."""
    return np.argsort(_priority(scores, by, choices), axis=1, kind="stable").astype(np.int32)


def priority_by_sum(B: Spec, scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """The priority is the sum of the chosen scores even if their maximum is requested."""
    return B.batch_priority(scores, by="sum", choices=max(choices, min(2, scores.shape[2])))


def tokens_in_heap_order(B: Spec, scores: Array, *, by: str = "max", choices: int = 1) -> Array:
    """Tokens of equal priority are ordered by an unstable sort."""
    return heap_order(_priority(scores, by, choices)).astype(np.int32)


def variants() -> Iterator[Variant]:
    computes = "A token whose highest score is -0.0 comes after one of 0.0, which equals it."
    yield fixed("negative_zero_last", computes, NAME, "BP-3", "jax", scores=below_zero)
    yield variant(least_important_first, NAME)
    yield variant(priority_by_sum, NAME, ledger="BP-1b")
    computes = "The priority is the highest score even if the sum of the chosen scores is requested."
    yield fixed("priority_by_maximum", computes, NAME, "BP-1b", by="max", choices=1)
    yield variant(tokens_in_heap_order, NAME, ledger="BP-3b", who="microsoft/Tutel")
