"""What holds of every algorithm that decides: zeros of both signs are equal."""

import numpy as np
from properties import holds
from strategies import seeds, slots


@holds(wrong="positive_zero_before_negative", problem=slots, seed=seeds)
def test_zero_and_minus_zero_are_equal(B, problem, seed):
    """Which of them a score is decides nothing."""
    scores, choices, capacity = problem
    scores = np.where(np.abs(scores) < 1, 0.0, scores)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=scores.shape)
    signed = np.where(scores == 0, signs * 0.0, scores)

    def decisions(scores):
        yield B.token_choice(scores, choices=choices, capacity=capacity).dispatch
        yield B.expert_choice(scores, capacity=capacity).dispatch
        yield B.batch_priority(scores)
        yield B.project_sparse_simplex(scores[:, 0], nonzeros=choices) > 0

    for plain, other in zip(decisions(scores), decisions(signed), strict=True):
        np.testing.assert_array_equal(other, plain)
