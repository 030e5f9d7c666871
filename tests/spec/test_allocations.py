"""Token Choice, batch priority and Expert Choice: worked numbers, and independent one-line definitions."""

import itertools

import numpy as np
import pytest

from moespec.spec import (
    Routing,
    batch_priority,
    expert_choice,
    slot_tokens,
    softmax_affinity,
    token_choice,
)
from moespec.spec.errors import ContractError
from moespec.spec.examples import LOGITS, TIED_SCORES

SCORES = softmax_affinity(LOGITS)


def total(routing):
    return round(float(routing.combine.sum()), 10)


def random_scores(seed, tokens, experts):
    """Scores on a coarse grid, so that ties are frequent."""
    return np.random.default_rng(seed).integers(0, 6, (tokens, experts)) / 8


SHAPES = [(1, 1), (1, 4), (5, 1), (6, 3), (9, 4), (16, 5)]


def cumulative_sum(scores, choices, capacity, order):
    """Token Choice without a loop: the slot of a request is the number of earlier requests of the same expert."""
    tokens, experts = scores.shape
    chosen = np.argsort(-scores, axis=1, kind="stable")[order, :choices]
    requests = np.eye(experts, dtype=int)[chosen.T.reshape(-1)]  # choice major, tokens in order
    slot = (np.cumsum(requests, axis=0) - 1) * requests
    dispatch = np.zeros((tokens, experts, capacity))
    for request, (row, position) in enumerate(zip(requests, slot, strict=True)):
        expert = row.argmax()
        if position[expert] < capacity:
            dispatch[order[request % tokens], expert, position[expert]] = 1
    return dispatch


@pytest.mark.parametrize(("tokens", "experts"), SHAPES)
@pytest.mark.parametrize("capacity", [1, 2, 4, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_token_choice_is_a_cumulative_sum(tokens, experts, capacity, seed):
    scores = random_scores(seed, tokens, experts)
    weights = np.random.default_rng(seed).normal(size=scores.shape)
    for choices in range(1, experts + 1):
        for order in (np.arange(tokens), batch_priority(scores), np.random.default_rng(seed).permutation(tokens)):
            routing = token_choice(
                scores, choices=choices, capacity=capacity, combine_scores=weights, order=order.tolist()
            )
            expected = cumulative_sum(scores, choices, capacity, order)
            np.testing.assert_array_equal(routing.dispatch, expected)
            np.testing.assert_array_equal(routing.combine, weights[:, :, None] * expected)


@pytest.mark.parametrize(("tokens", "experts"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expert_choice_sorts_by_score_then_index(tokens, experts, seed):
    scores = random_scores(seed, tokens, experts)
    weights = np.random.default_rng(seed).normal(size=scores.shape)
    for capacity in range(1, tokens + 1):
        routing = expert_choice(scores, capacity=capacity, combine_scores=weights)
        expected = [sorted(range(tokens), key=lambda t: (-scores[t, e], t))[:capacity] for e in range(experts)]
        assert slot_tokens(routing).tolist() == expected
        np.testing.assert_array_equal(routing.combine, weights[:, :, None] * routing.dispatch)


@pytest.mark.parametrize(("tokens", "experts"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batch_priority_sorts_by_priority_then_index(tokens, experts, seed):
    scores = random_scores(seed, tokens, experts)
    for choices in range(1, experts + 1):
        best = [max(sum(subset) for subset in itertools.combinations(row, choices)) for row in scores.tolist()]
        by_sum = sorted(range(tokens), key=lambda t: (-best[t], t))
        assert batch_priority(scores, by="sum", choices=choices).tolist() == by_sum
        by_max = sorted(range(tokens), key=lambda t: (-max(scores[t]), t))
        assert batch_priority(scores, choices=choices).tolist() == by_max


def test_batch_priority_by_sum_differs_from_by_max():
    scores = [[0.6, 0.0, 0.4], [0.5, 0.45, 0.05]]
    assert batch_priority(scores, by="max", choices=2).tolist() == [0, 1]
    assert batch_priority(scores, by="sum", choices=2).tolist() == [0, 1]  # 1.0 against 0.95
    scores = [[0.6, 0.2, 0.2], [0.5, 0.45, 0.05]]
    assert batch_priority(scores, by="max", choices=2).tolist() == [0, 1]
    assert batch_priority(scores, by="sum", choices=2).tolist() == [1, 0]  # 0.8 against 0.95


def test_an_order_changes_slots_but_not_rows():
    routing = token_choice(TIED_SCORES, choices=1, capacity=1, order=[4, 3, 2, 1, 0])
    assert slot_tokens(routing).tolist() == [[3], [1], [4]]
    assert routing.combine[3, 0, 0] == 0.5


def test_all_first_choices_come_before_any_second_choice():
    scores = [[0.6, 0.4], [0.4, 0.6]]
    assert slot_tokens(token_choice(scores, choices=2, capacity=1)).tolist() == [[0], [1]]


def test_a_token_may_lose_its_first_choice_and_keep_its_second():
    scores = [[0.9, 0.1, 0.0], [0.8, 0.0, 0.2]]
    routing = token_choice(scores, choices=2, capacity=1)
    assert slot_tokens(routing).tolist() == [[0], [0], [1]]
    assert routing.combine[1].sum() == 0.2  # not renormalised


def test_selection_and_combine_scores_are_independent():
    routing = token_choice(SCORES, choices=1, capacity=2, combine_scores=-LOGITS)
    assert slot_tokens(routing).tolist() == [[0, 1], [2, 5], [3, 6]]
    assert routing.combine[1, 0, 1] == -2.0
    routing = expert_choice(-SCORES, capacity=1, combine_scores=SCORES)
    assert slot_tokens(routing).tolist() == [[5], [4], [5]]
    assert routing.combine[4, 1, 0] == SCORES[4, 1]


def test_ranking_a_column_of_logits_is_another_router():
    assert slot_tokens(expert_choice(LOGITS, capacity=2)).tolist() == [[4, 1], [5, 1], [3, 4]]


def test_drop_zero_leaves_slots_empty():
    scores = np.array([[0.0, 0.5], [0.25, 0.0], [0.0, 0.0]])
    routing = expert_choice(scores, capacity=2, combine_scores=scores + 1)
    assert slot_tokens(routing).tolist() == [[1, 0], [0, 1]]
    assert total(routing) == 1.25 + 1.0 + 1.5 + 1.0
    routing = expert_choice(scores, capacity=2, combine_scores=scores + 1, drop_zero=True)
    assert slot_tokens(routing).tolist() == [[1, 3], [0, 3]]
    assert total(routing) == 1.25 + 1.5


def test_float32_and_nested_lists_give_float64():
    for scores in (SCORES.astype(np.float32), SCORES.astype(np.float32).tolist()):
        routing = token_choice(scores, choices=1, capacity=2)
        assert routing.dispatch.dtype == routing.combine.dtype == np.float64
        assert slot_tokens(routing).tolist() == [[0, 1], [2, 5], [3, 6]]


def test_selection_ignores_the_imaginary_part():
    scores = TIED_SCORES + 1e-30j * np.arange(15.0).reshape(5, 3)
    assert slot_tokens(token_choice(scores, choices=2, capacity=2)).tolist() == [[0, 3], [1, 0], [2, 4]]
    assert slot_tokens(expert_choice(scores, capacity=3)).tolist() == [[0, 3, 1], [1, 0, 2], [2, 4, 0]]
    assert batch_priority(scores).tolist() == [0, 1, 2, 3, 4]


def test_slot_tokens_is_for_sparse_routings():
    weights = np.full((2, 1, 1), 0.5)
    with pytest.raises(ContractError, match="routing"):
        slot_tokens(Routing(weights, weights))
