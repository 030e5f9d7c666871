"""Section 14: BASE layers. Scores are (groups, tokens, experts)."""

import itertools

import numpy as np
from properties.implementations import holds
from properties.strategies import GROUPS, even_logits, seeds, shuffled


def balanced(tokens, experts):
    """Every balanced assignment (of few tokens), or some."""
    even = np.repeat(np.arange(experts), tokens // experts)
    if tokens <= 6:
        return {tuple(a) for a in itertools.permutations(even.tolist())}
    return {tuple(np.random.default_rng(seed).permutation(even).tolist()) for seed in range(200)}


def totals(scores, expert):
    """The total score of the assignment of each group."""
    return np.take_along_axis(scores, np.asarray(expert)[..., None].astype(int), axis=2).sum(axis=(1, 2))


@holds(wrong="assignment_is_greedy", scores=even_logits)
def test_every_expert_has_as_many_tokens(B, scores):
    """Exactly T / E, whatever the ties."""
    tokens, experts = scores.shape[1:]
    expert = B.base_assignment(scores).expert
    for group in expert:
        assert np.bincount(group, minlength=experts).tolist() == [tokens // experts] * experts


@holds(wrong="assignment_in_turn", scores=even_logits)
def test_no_balanced_assignment_has_a_larger_total(B, scores):
    """Brute force for few tokens; the objective is the total of the assignment returned."""
    found = B.base_assignment(scores)
    np.testing.assert_allclose(found.objective, totals(scores, found.expert), atol=1e-12)
    for assignment in balanced(*scores.shape[1:]):
        assert (totals(scores, np.tile(assignment, (GROUPS, 1))) <= found.objective + 1e-12).all()


@holds(wrong="assignment_in_turn", scores=even_logits)
def test_no_exchange_of_two_tokens_gains(B, scores):
    expert = B.base_assignment(scores).expert
    for group, of in zip(scores, expert, strict=True):
        own, there = group[np.arange(len(of)), of], group[:, of]
        assert (there + there.T <= own[:, None] + own + 1e-12).all()


@holds(wrong="gap_to_the_greedy_total", scores=even_logits)
def test_the_gap_proves_that_it_is_the_best(B, scores):
    """The dual has the same value: the gap is 0."""
    np.testing.assert_allclose(B.base_assignment(scores).gap, 0, atol=1e-12)


@holds(wrong="assignment_is_greedy", scores=even_logits, seed=seeds)
def test_constants_for_rows_and_columns_change_nothing_but_the_total(B, scores, seed):
    """As every balanced assignment gains the same."""
    tokens, experts = scores.shape[1:]
    random = np.random.default_rng(seed)
    rows, columns = random.integers(-8, 9, (tokens, 1)) / 4, random.integers(-8, 9, experts) / 4
    shifted = B.base_assignment(scores + rows + columns).objective
    expected = B.base_assignment(scores).objective + rows.sum() + tokens // experts * columns.sum()
    np.testing.assert_allclose(shifted, expected, atol=1e-12)


@holds(wrong="assignment_in_turn", scores=even_logits, seed=seeds)
def test_permuting_tokens_or_experts_permutes_the_problem(B, scores, seed):
    """The total stays (the assignment too, where only one is the best)."""
    tokens, experts = scores.shape[1:]
    total = B.base_assignment(scores).objective
    for permuted in (scores[:, shuffled(tokens, seed)], scores[:, :, shuffled(experts, seed)]):
        np.testing.assert_allclose(B.base_assignment(permuted).objective, total, atol=1e-12)


@holds(wrong="greedy_over_tokens", scores=even_logits)
def test_at_evaluation_a_token_goes_to_its_first_best_expert(B, scores):
    np.testing.assert_array_equal(B.base_greedy(scores), scores.argmax(axis=2))


@holds(wrong="slots_by_score", scores=even_logits)
def test_tokens_fill_slots_by_index_with_the_sigmoid_of_their_score(B, scores):
    tokens, experts = scores.shape[1:]
    expert = np.argmax(scores, axis=2).astype(np.int32)
    dispatch, combine = B.base_routing(scores, expert, capacity=tokens)
    expected = np.zeros_like(dispatch)
    for g, e in itertools.product(range(GROUPS), range(experts)):
        mine = np.flatnonzero(expert[g] == e)
        expected[g, mine, e, np.arange(len(mine))] = 1
    np.testing.assert_array_equal(dispatch, expected)
    np.testing.assert_allclose(combine, dispatch / (1 + np.exp(-scores))[..., None], rtol=1e-13)
