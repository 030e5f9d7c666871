"""Importance-score routing: the order of the tokens that are left, and Token Choice among them."""

import math

import numpy as np
import pytest
from properties import holds
from strategies import one_of, seeds, slots

from moespec.spec.algorithms.importance_score import surviving_tokens

DROPS = one_of(0.25, 0.0, 0.1, 0.5, 0.9)
OF_THE_ORDER = ("important_in_heap_order", "nobody_removed")


def order_of(scores, drop):
    """The tokens by their best scores, without the last floor(drop T); the lower index first among equals."""
    left = scores.shape[1] - math.floor(drop * scores.shape[1])
    return np.argsort(-scores.max(axis=2), axis=1, kind="stable")[:, :left]


@holds(wrong=OF_THE_ORDER, problem=slots, drop=DROPS)
def test_the_order_is_the_start_of_that_of_descending_importance(B, problem, drop):
    order = B.importance_score_order(problem.scores, drop=drop)
    np.testing.assert_array_equal(order, order_of(problem.scores, drop))


@holds(wrong=("removed_after_they_chose", "nobody_removed"), problem=slots, seed=seeds, drop=DROPS,
       others=one_of(False, True))  # fmt: skip
def test_it_is_token_choice_of_those_that_are_left(B, problem, seed, drop, others):
    """In the order of their importance, as if they were all there is; the rows of the others are zeros."""
    scores, choices, capacity = problem
    order, options = order_of(scores, drop), {"choices": choices, "capacity": capacity}
    weights = np.random.default_rng(seed).random(scores.shape) if others else scores
    combine_scores = {"combine_scores": weights} if others else {}
    routing = B.importance_score_choice(scores, drop=drop, **combine_scores, **options)
    rows, among = (np.take_along_axis(array, order[:, :, None], axis=1) for array in (scores, weights))
    for tensor, part in zip(routing, B.token_choice(rows, combine_scores=among, **options), strict=True):
        expected = np.zeros(tensor.shape)
        np.put_along_axis(expected, order[:, :, None, None], part, axis=1)
        np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize("tokens", [1, 9, 10, 11, 19, 20, 196, 384, 1000, 1572864])
def test_a_tenth_is_rounded_down(tokens):
    assert surviving_tokens(tokens, 0.1) == tokens - tokens // 10
    assert surviving_tokens(tokens, 0.5) == math.ceil(tokens / 2)
