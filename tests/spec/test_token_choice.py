"""Token Choice against its definition, request by request; choices that are not made, and tokens that try other experts."""

import itertools

import numpy as np
import pytest
from implementations import holds
from strategies import one_of, orders, seeds, slots
from wrong import capacity_off_by, favouring, last_forgotten, rows_not_put_back

from moespec import spec
from moespec.spec import ContractError, Routing, softmax_affinity, token_choice
from moespec.spec.examples import LOGITS, TIED_SCORES

WRONG = (
    *(
        "weights_of_the_selection",
        "next_best_expert",
        "all_choices_of_a_token_first",
        "order_ignored",
    ),
    *("chosen_weights_renormalised", "newcomers_replace_the_last", favouring("token_choice", 2)),
    *(capacity_off_by("token_choice", -1), last_forgotten, rows_not_put_back),
)


@holds(wrong=WRONG, problem=slots, seed=seeds, others=one_of(True, False))
def test_choices_are_assigned_in_turn(B, problem, seed, others):
    """First choices before second ones, in each the tokens in their order, each in the next slot if there is one; a tie goes
    to the lower expert. The weights are the scores and the order that of the index, or others."""
    scores, choices, capacity = problem
    order, weights = orders(problem.tokens, seed), np.random.default_rng(seed).random(scores.shape)
    options = {"order": order, "combine_scores": weights} if others else {}
    dispatch, combine = B.token_choice(scores, choices=choices, capacity=capacity, **options)
    expected = np.zeros_like(dispatch)
    for g, ranked in enumerate(np.argsort(-scores, axis=2, kind="stable")):
        tokens = order[g] if others else range(problem.tokens)
        for e in range(problem.experts):
            queue = [t for k in range(choices) for t in tokens if ranked[t, k] == e][:capacity]
            expected[g, queue, e, range(len(queue))] = 1
    np.testing.assert_array_equal(dispatch, expected)
    np.testing.assert_array_equal(combine, expected * (weights if others else scores)[..., None])


def test_a_choice_that_is_not_made_takes_no_slot():
    keep = np.array([[True, False], [False, True], [True, True]])
    scores = np.array([[0.5, 0.25], [0.5, 0.25], [0.5, 0.25]])
    routing = token_choice(scores, choices=2, capacity=2, keep=keep)
    assert spec.slot_tokens(routing).tolist() == [[0, 2], [1, 2]]
    routing = token_choice(scores, choices=2, capacity=2, keep=np.ones((3, 2), bool), order=[2, 1, 0])
    assert spec.slot_tokens(routing).tolist() == [[2, 1], [2, 1]]
    held = token_choice(scores, choices=2, capacity=2, keep=keep, hold=True)
    assert spec.slot_tokens(held).tolist() == [[0, 3], [3, 1]]


def test_tokens_without_room_try_others():
    """Mesh TensorFlow's gating without token left behind, by its cumulative sums."""
    random = np.random.default_rng(0)
    for capacity, tries in itertools.product((1, 2, 3), (1, 2, 4)):
        gates = softmax_affinity(random.normal(size=(12, 4)))
        ranked = np.argsort(-gates, axis=1, kind="stable")
        expected, filled, left = np.zeros((12, 4, capacity)), np.zeros(4), np.ones(12)
        for stage in range(tries):
            mask = np.eye(4)[ranked[:, stage]] * left[:, None]
            cumulative = filled + np.cumsum(mask, axis=0)
            fits = mask * (cumulative <= capacity)
            filled, left = filled + fits.sum(axis=0), left - fits.sum(axis=1)
            for t, e in np.argwhere(fits):
                expected[t, e, int(cumulative[t, e]) - 1] = gates[t, e]
        routing = token_choice(gates, choices=1, capacity=capacity, tries=tries)
        np.testing.assert_array_equal(routing.combine, expected)


def test_all_tokens_find_room_where_there_is_enough():
    scores = np.random.default_rng(0).normal(size=(12, 4))
    dropped = token_choice(scores, choices=2, capacity=6).dispatch.sum(axis=(1, 2))
    rerouted = token_choice(scores, choices=2, capacity=6, tries=4).dispatch.sum(axis=(1, 2))
    assert dropped.sum() < rerouted.sum()
    assert (rerouted <= 2).all()


def test_float32_and_nested_lists_give_float64():
    scores = softmax_affinity(LOGITS).astype(np.float32)
    for values in (scores, scores.tolist()):
        routing = token_choice(values, choices=1, capacity=2)
        assert routing.dispatch.dtype == routing.combine.dtype == np.float64
        assert spec.slot_tokens(routing).tolist() == [[0, 1], [2, 5], [3, 6]]


def test_selection_ignores_the_imaginary_part():
    scores = TIED_SCORES + 1e-30j * np.arange(15.0).reshape(5, 3)
    assert spec.slot_tokens(token_choice(scores, choices=2, capacity=2)).tolist() == [[0, 3], [1, 0], [2, 4]]
    assert spec.slot_tokens(spec.expert_choice(scores, capacity=3)).tolist() == [[0, 3, 1], [1, 0, 2], [2, 4, 0]]
    assert spec.batch_priority(scores).tolist() == [0, 1, 2, 3, 4]


def test_slot_tokens_is_for_sparse_routings():
    weights = np.full((2, 1, 1), 0.5)
    with pytest.raises(ContractError, match="routing"):
        spec.slot_tokens(Routing(weights, weights))
