"""Section 3: Token Choice. Dispatch and combine are (groups, tokens, experts, capacity)."""

import numpy as np
import pytest
from properties.implementations import holds, implementation
from properties.strategies import distinct_slots, orders, seeds, shuffled, slots
from properties.wrong import capacity_off_by, favouring, last_forgotten


def chosen(scores, choices):
    """The experts of each token, best first, the lower index among equals: (groups, tokens, choices)."""
    return np.argsort(-scores, axis=2, kind="stable")[:, :, :choices]


@holds(wrong="weights_of_one", problem=slots)
def test_a_slot_holds_one_token_and_a_token_enters_an_expert_once(B, problem):
    """D is 0 or 1, sums to at most 1 over tokens, at most 1 over slots, at most C over both; C = B * D."""
    scores, choices, capacity = problem
    dispatch, combine = B.token_choice(scores, choices=choices, capacity=capacity)
    assert set(np.unique(dispatch)) <= {0, 1}
    assert (dispatch.sum(axis=1) <= 1).all()
    assert (dispatch.sum(axis=3) <= 1).all()
    assert (dispatch.sum(axis=(1, 3)) <= capacity).all()
    np.testing.assert_array_equal(combine, dispatch * scores[..., None])


@holds(wrong="weights_of_the_selection", problem=slots, seed=seeds)
def test_other_scores_may_be_the_weights(B, problem, seed):
    """C = B * D with combine scores B that do not change D."""
    scores, choices, capacity = problem
    weights = np.random.default_rng(seed).random(scores.shape)
    routing = B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=weights)
    plain = B.token_choice(scores, choices=choices, capacity=capacity)
    np.testing.assert_array_equal(routing.dispatch, plain.dispatch)
    np.testing.assert_array_equal(routing.combine, plain.dispatch * weights[..., None])


@holds(wrong="next_best_expert", problem=slots)
def test_an_expert_fills_a_prefix_of_as_many_slots_as_are_asked_for(B, problem):
    """Slots 0 .. n - 1 are filled, n = min(C, requests)."""
    scores, choices, capacity = problem
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity)
    experts = np.arange(problem.experts)
    requests = (chosen(scores, choices)[..., None] == experts).sum(axis=(1, 2))
    filled = np.minimum(requests, capacity)
    np.testing.assert_array_equal(dispatch.sum(axis=1), np.arange(capacity) < filled[..., None])


@holds(wrong="next_best_expert", problem=slots)
def test_a_token_enters_only_experts_that_it_chose(B, problem):
    """At most K, and a dropped choice is not replaced."""
    scores, choices, capacity = problem
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity)
    wanted = (chosen(scores, choices)[..., None] == np.arange(problem.experts)).any(axis=2)
    assert (dispatch.sum(axis=3) <= wanted).all()


@holds(wrong="all_choices_of_a_token_first", problem=slots, seed=seeds)
def test_choices_are_assigned_in_turn(B, problem, seed):
    """First choices before second ones, and in each the tokens in their order, each in the next slot."""
    scores, choices, capacity = problem
    order = orders(problem.tokens, seed)
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity, order=order)
    expected = np.zeros_like(dispatch)
    for g, ranked in enumerate(chosen(scores, choices)):
        for e in range(problem.experts):
            queue = [t for k in range(choices) for t in order[g] if ranked[t, k] == e]
            expected[g, queue[:capacity], e, range(len(queue[:capacity]))] = 1
    np.testing.assert_array_equal(dispatch, expected)


@holds(wrong="chosen_weights_renormalised", problem=slots)
def test_softmax_weights_sum_to_one_only_if_every_expert_serves(B, problem):
    """The combine mass of a token is at most 1, with equality exactly if K = E and nothing is dropped."""
    scores, choices, capacity = problem
    dispatch, combine = B.token_choice(B.softmax_affinity(scores), choices=choices, capacity=capacity)
    mass, served = combine.sum(axis=(2, 3)), dispatch.sum(axis=(2, 3))
    assert (mass <= 1 + 1e-12).all()
    np.testing.assert_array_equal(mass > 1 - 1e-9, served == problem.experts)


@holds(wrong=favouring("token_choice", 2), problem=distinct_slots, seed=seeds)
def test_permuting_experts_permutes_the_routing(B, problem, seed):
    """Where no scores are equal."""
    scores, choices, capacity = problem
    order = shuffled(problem.experts, seed)
    routing = B.token_choice(scores, choices=choices, capacity=capacity)
    permuted = B.token_choice(scores[:, :, order], choices=choices, capacity=capacity)
    np.testing.assert_array_equal(permuted.dispatch, routing.dispatch[:, :, order])
    np.testing.assert_array_equal(permuted.combine, routing.combine[:, :, order])


@holds(wrong=last_forgotten, problem=slots, seed=seeds)
def test_with_one_choice_the_order_of_the_tokens_does_not_change_how_many_slots_are_filled(B, problem, seed):
    scores, _, capacity = problem
    order = orders(problem.tokens, seed)
    dispatch, _ = B.token_choice(scores, choices=1, capacity=capacity)
    ordered, _ = B.token_choice(scores, choices=1, capacity=capacity, order=order)
    np.testing.assert_array_equal(ordered.sum(axis=(1, 3)), dispatch.sum(axis=(1, 3)))


@holds(wrong="order_ignored", problem=slots, seed=seeds)
def test_an_order_is_a_permutation_of_the_tokens(B, problem, seed):
    """Serving tokens in an order is routing them in that order, and putting them back."""
    scores, choices, capacity = problem
    order = orders(problem.tokens, seed)[..., None]
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity, order=order[..., 0])
    permuted, _ = B.token_choice(np.take_along_axis(scores, order, axis=1), choices=choices, capacity=capacity)
    np.testing.assert_array_equal(permuted, np.take_along_axis(dispatch, order[..., None], axis=1))


@holds(wrong="newcomers_replace_the_last", problem=slots)
def test_more_capacity_removes_no_assignment(B, problem):
    scores, choices, capacity = problem
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity)
    wider, _ = B.token_choice(scores, choices=choices, capacity=capacity + 1)
    np.testing.assert_array_equal(wider[..., :capacity], dispatch)


@holds(wrong=capacity_off_by("token_choice", -1), problem=slots)
def test_with_a_slot_for_every_token_nothing_is_dropped(B, problem):
    scores, choices, _ = problem
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=problem.tokens)
    np.testing.assert_array_equal(dispatch.sum(axis=(2, 3)), choices)


@holds(wrong="all_choices_of_a_token_first", problem=slots)
def test_first_choices_do_not_depend_on_second_choices(B, problem):
    scores, choices, capacity = problem
    dispatch, _ = B.token_choice(scores, choices=choices, capacity=capacity)
    first, _ = B.token_choice(scores, choices=1, capacity=capacity)
    assert (dispatch >= first).all()


@pytest.mark.parametrize("name", ["spec", "jax", "torch"])
def test_who_is_dropped_depends_on_the_order_of_the_tokens(name):
    """Token Choice with drops does not commute with a permutation of the tokens."""
    dispatch, _ = implementation(name).token_choice(np.array([[[2.0], [3.0]]]), choices=1, capacity=1)
    assert dispatch[0, :, 0, 0].tolist() == [1, 0]  # not the better one
