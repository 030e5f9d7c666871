"""Section 15.5: importance-score routing."""

import math

import numpy as np
from properties.implementations import holds
from properties.strategies import distinct_slots, number, one_of, orders, seeds, slots

SHARES = number(0.25, 0.0, 0.1, 0.5, 0.9)


def importance(scores):
    """(groups, tokens)."""
    return scores.max(axis=2)


@holds(wrong="important_in_heap_order", problem=slots, drop=SHARES)
def test_the_order_is_the_start_of_that_of_descending_importance(B, problem, drop):
    """Without the last floor(drop T); the lower index first among equals."""
    order = B.importance_score_order(problem.scores, drop=drop)
    left = problem.tokens - math.floor(drop * problem.tokens)
    np.testing.assert_array_equal(order, np.argsort(-importance(problem.scores), axis=1, kind="stable")[:, :left])


@holds(wrong="most_important_removed", problem=slots, drop=SHARES)
def test_every_surviving_score_is_at_least_every_removed_one(B, problem, drop):
    order = B.importance_score_order(problem.scores, drop=drop)
    for scores, left in zip(importance(problem.scores), order, strict=True):
        assert scores[left].min() >= np.delete(scores, left).max(initial=-np.inf)


@holds(wrong="nobody_removed", problem=slots, drop=SHARES)
def test_removed_tokens_have_rows_of_zeros(B, problem, drop):
    """So that at most K (T - n_drop) slots are filled."""
    scores, choices, capacity = problem
    order = B.importance_score_order(scores, drop=drop)
    dispatch, combine = B.importance_score_choice(scores, choices=choices, capacity=capacity, drop=drop)
    left = problem.tokens - math.floor(drop * problem.tokens)
    assert (dispatch.sum(axis=(1, 2, 3)) <= choices * left).all()
    for g, survivors in enumerate(order):
        assert not np.delete(dispatch[g], survivors, axis=0).any()
        assert not np.delete(combine[g], survivors, axis=0).any()


@holds(wrong="removed_after_they_chose", problem=slots, drop=SHARES)
def test_it_is_token_choice_of_those_that_are_left(B, problem, drop):
    """In the order of their importance, as if they were all there is."""
    scores, choices, capacity = problem
    order = B.importance_score_order(scores, drop=drop)
    found, _ = B.importance_score_choice(scores, choices=choices, capacity=capacity, drop=drop)
    rows = np.take_along_axis(scores, order[:, :, None].astype(int), axis=1)
    among, _ = B.token_choice(rows, choices=choices, capacity=capacity)
    placed = np.take_along_axis(found, order[:, :, None, None].astype(int), axis=1)
    np.testing.assert_array_equal(placed, among)


@holds(wrong="served_by_index", problem=distinct_slots, seed=seeds, drop=SHARES)
def test_permuting_tokens_permutes_the_routing(B, problem, seed, drop):
    """Where no scores are equal: channels of one image have no order of their own."""
    scores, choices, capacity = problem
    order = orders(problem.tokens, seed)[..., None]
    options = {"choices": choices, "capacity": capacity, "drop": drop}
    permuted, _ = B.importance_score_choice(np.take_along_axis(scores, order, axis=1), **options)
    dispatch, _ = B.importance_score_choice(scores, **options)
    np.testing.assert_array_equal(permuted, np.take_along_axis(dispatch, order[..., None], axis=1))


@holds(wrong="nobody_removed", problem=slots, drop=one_of(0.25))
def test_a_larger_share_removes_more(B, problem, drop):
    """Who survives the larger cut survives the smaller one, and the cut never takes all."""
    less, more = (B.importance_score_order(problem.scores, drop=share) for share in (drop, 0.75))
    np.testing.assert_array_equal(less[:, : more.shape[1]], more)
    assert 1 <= more.shape[1] <= less.shape[1]
    assert more.shape[1] == problem.tokens - math.floor(0.75 * problem.tokens)
