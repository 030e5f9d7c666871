"""Batch Priority Routing: why the best come first."""

from properties import holds
from strategies import orders, seeds, slots


@holds(wrong="least_important_first", problem=slots, seed=seeds)
def test_with_one_choice_no_order_keeps_more_first_choice_mass(B, problem, seed):
    scores, capacity = B.softmax_affinity(problem.scores), problem.capacity
    _, best = B.token_choice(scores, choices=1, capacity=capacity, order=B.batch_priority(scores))
    _, other = B.token_choice(scores, choices=1, capacity=capacity, order=orders(problem.tokens, seed))
    assert (best.sum(axis=(1, 2, 3)) >= other.sum(axis=(1, 2, 3)) - 1e-12).all()
