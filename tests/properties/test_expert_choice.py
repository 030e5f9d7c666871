"""Section 5: Expert Choice. Dispatch and combine are (groups, tokens, experts, capacity)."""

import numpy as np
from properties.implementations import holds
from properties.strategies import distinct_slots, orders, seeds, shuffled, slots


@holds(wrong="choosers_weights_ignored", problem=slots, seed=seeds)
def test_every_slot_holds_one_token_and_its_weight(B, problem, seed):
    """D is 0 or 1 and sums to exactly 1 over tokens, to at most 1 over slots; C = B * D."""
    scores, _, capacity = problem
    weights = np.random.default_rng(seed).random(scores.shape)
    dispatch, combine = B.expert_choice(scores, capacity=capacity, combine_scores=weights)
    assert set(np.unique(dispatch)) <= {0, 1}
    assert (dispatch.sum(axis=1) == 1).all()
    assert (dispatch.sum(axis=3) <= 1).all()
    np.testing.assert_array_equal(combine, dispatch * weights[..., None])


@holds(wrong="ties_to_the_higher_token", problem=slots)
def test_slot_c_holds_the_token_of_rank_c(B, problem):
    """Slot 0 the best; the lower index among equals."""
    scores, _, capacity = problem
    dispatch, combine = B.expert_choice(scores, capacity=capacity)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :capacity]  # (groups, capacity, experts)
    np.testing.assert_array_equal(dispatch.argmax(axis=1), best.swapaxes(1, 2))
    np.testing.assert_array_equal(combine, dispatch * scores[..., None])


@holds(wrong="slots_in_the_order_of_tokens", problem=distinct_slots, seed=seeds)
def test_permuting_tokens_and_experts_permutes_the_routing(B, problem, seed):
    """Where no scores are equal; slots stay, since they are sorted by score."""
    scores, _, capacity = problem
    tokens, experts = orders(problem.tokens, seed)[..., None], shuffled(problem.experts, seed)
    dispatch, _ = B.expert_choice(scores, capacity=capacity)
    permuted, _ = B.expert_choice(np.take_along_axis(scores, tokens, axis=1)[:, :, experts], capacity=capacity)
    np.testing.assert_array_equal(permuted, np.take_along_axis(dispatch, tokens[..., None], axis=1)[:, :, experts])


@holds(wrong="experts_renormalised", problem=slots)
def test_softmax_weights_of_a_token_sum_to_at_most_one(B, problem):
    scores, _, capacity = problem
    dispatch, combine = B.expert_choice(B.softmax_affinity(scores), capacity=capacity)
    mass, chosen = combine.sum(axis=(2, 3)), dispatch.sum(axis=(2, 3))
    assert (mass <= 1 + 1e-12).all()
    np.testing.assert_array_equal(mass > 1 - 1e-9, chosen == problem.experts)


@holds(wrong="slots_in_the_order_of_tokens", problem=slots)
def test_more_capacity_removes_no_assignment(B, problem):
    scores, _, capacity = problem
    wider, _ = B.expert_choice(scores, capacity=problem.tokens)
    dispatch, _ = B.expert_choice(scores, capacity=capacity)
    np.testing.assert_array_equal(wider[..., :capacity], dispatch)


@holds(wrong="zero_scores_taken_in", problem=slots)
def test_dropping_zero_scores_only_empties_slots(B, problem):
    """With `drop_zero` a slot is empty exactly if the score of its token is not positive."""
    scores, _, capacity = problem
    dispatch, _ = B.expert_choice(scores, capacity=capacity)
    dropped, _ = B.expert_choice(scores, capacity=capacity, drop_zero=True)
    np.testing.assert_array_equal(dropped, dispatch * (scores > 0)[..., None])
