"""Batch Priority Routing: the order of the tokens, and why the best come first."""

import numpy as np
from properties import holds
from strategies import one_of, orders, seeds, slots

WRONG = ("tokens_in_heap_order", "least_important_first")


@holds(wrong=WRONG, problem=slots, by=one_of("max", "sum"))
def test_the_order_is_that_of_descending_priority(B, problem, by):
    """By the best score, or by the sum of the K best; the lower index first among equals."""
    scores, choices, _ = problem
    best = np.sort(scores, axis=2)[:, :, ::-1]
    priority = best[:, :, 0] if by == "max" else best[:, :, :choices].sum(axis=2)
    order = B.batch_priority(scores, by=by, choices=choices)
    np.testing.assert_array_equal(order, np.argsort(-priority, axis=1, kind="stable"))


@holds(wrong="least_important_first", problem=slots, seed=seeds)
def test_with_one_choice_no_order_keeps_more_first_choice_mass(B, problem, seed):
    scores, capacity = B.softmax_affinity(problem.scores), problem.capacity
    _, best = B.token_choice(scores, choices=1, capacity=capacity, order=B.batch_priority(scores))
    _, other = B.token_choice(scores, choices=1, capacity=capacity, order=orders(problem.tokens, seed))
    assert (best.sum(axis=(1, 2, 3)) >= other.sum(axis=(1, 2, 3)) - 1e-12).all()
