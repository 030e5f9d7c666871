"""Expert Choice against its definition, slot by slot."""

import numpy as np
from properties import holds
from strategies import one_of, seeds, slots

WRONG = (
    *("choosers_weights_ignored", "ties_to_the_higher_token", "experts_renormalised"),
    "zero_scores_taken_in",
)


@holds(wrong=WRONG, problem=slots, seed=seeds, drop_zero=one_of(False, True), others=one_of(False, True))
def test_slot_c_holds_the_token_of_rank_c(B, problem, seed, drop_zero, others):
    """Slot 0 the best; the lower index among equals. With `drop_zero` a slot is empty if the score of its token is not
    positive. The weights are the scores, or others."""
    scores, _, capacity = problem
    weights = np.random.default_rng(seed).random(scores.shape) if others else scores
    options = {"combine_scores": weights} if others else {}
    dispatch, combine = B.expert_choice(scores, capacity=capacity, drop_zero=drop_zero, **options)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :capacity]  # (groups, capacity, experts)
    expected = best.swapaxes(1, 2)[:, None] == np.arange(problem.tokens)[:, None, None]
    if drop_zero:
        expected = expected & (scores > 0)[..., None]
    np.testing.assert_array_equal(dispatch, expected)
    np.testing.assert_array_equal(combine, expected * weights[..., None])
