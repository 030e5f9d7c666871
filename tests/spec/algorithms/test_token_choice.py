"""Token Choice against its definition, request by request, and tokens that try other experts."""

import itertools

import numpy as np
from properties import holds
from strategies import one_of, orders, seeds, slots

from moespec.spec import softmax_affinity, token_choice

WRONG = (
    *("weights_of_the_selection", "next_best_expert", "all_choices_of_a_token_first"),
    *("chosen_weights_renormalised", "newcomers_replace_the_last"),
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
