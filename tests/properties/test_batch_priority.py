"""Section 4: Batch Priority Routing."""

import numpy as np
from properties.implementations import holds
from properties.strategies import distinct_slots, one_of, orders, seeds, slots
from properties.wrong import rows_not_put_back


def prioritised(B, scores, *, choices, capacity, by="max"):
    """Token Choice in the order of the priorities."""
    order = B.batch_priority(scores, by=by, choices=choices)
    return B.token_choice(scores, choices=choices, capacity=capacity, order=order)


@holds(wrong="tokens_in_heap_order", problem=slots, by=one_of("max", "sum"))
def test_the_order_is_that_of_descending_priority(B, problem, by):
    """By the best score, or by the sum of the K best; the lower index first among equals."""
    scores, choices, _ = problem
    best = np.sort(scores, axis=2)[:, :, ::-1]
    priority = best[:, :, 0] if by == "max" else best[:, :, :choices].sum(axis=2)
    order = B.batch_priority(scores, by=by, choices=choices)
    np.testing.assert_array_equal(order, np.argsort(-priority, axis=1, kind="stable"))


@holds(wrong="ranks_for_order", problem=distinct_slots, seed=seeds, by=one_of("max", "sum"))
def test_permuting_tokens_permutes_the_routing(B, problem, seed, by):
    """Where no priorities are equal: which token is dropped does not depend on where it stands."""
    scores, choices, capacity = problem
    scores = scores + np.arange(problem.tokens)[:, None] / 1024  # no two sums are equal
    order = orders(problem.tokens, seed)[..., None]
    permuted, _ = prioritised(B, np.take_along_axis(scores, order, axis=1), choices=choices, capacity=capacity, by=by)
    dispatch, _ = prioritised(B, scores, choices=choices, capacity=capacity, by=by)
    np.testing.assert_array_equal(permuted, np.take_along_axis(dispatch, order[..., None], axis=1))


@holds(wrong="least_important_first", problem=distinct_slots)
def test_with_one_choice_an_expert_keeps_the_best_of_those_who_ask(B, problem):
    """Exactly the C requesting tokens with the largest priority, the best in slot 0."""
    scores, _, capacity = problem
    dispatch, _ = prioritised(B, scores, choices=1, capacity=capacity)
    favourite = scores.argmax(axis=2)
    for g in range(len(scores)):
        for e in range(problem.experts):
            asking = sorted(np.flatnonzero(favourite[g] == e), key=lambda t: -scores[g, t, e])
            slots_of = [np.flatnonzero(slot) for slot in dispatch[g, :, e].T]
            assert [token for slot in slots_of for token in slot] == asking[:capacity]


@holds(wrong=rows_not_put_back, problem=slots)
def test_without_drops_only_the_slots_change(B, problem):
    """The sum of D over slots."""
    scores, choices, _ = problem
    dispatch, _ = prioritised(B, scores, choices=choices, capacity=problem.tokens)
    plain, _ = B.token_choice(scores, choices=choices, capacity=problem.tokens)
    np.testing.assert_array_equal(dispatch.sum(axis=3), plain.sum(axis=3))


@holds(wrong="least_important_first", problem=slots, seed=seeds)
def test_with_one_choice_no_order_keeps_more_first_choice_mass(B, problem, seed):
    scores, _, capacity = problem
    scores = B.softmax_affinity(scores)
    _, best = prioritised(B, scores, choices=1, capacity=capacity)
    _, other = B.token_choice(scores, choices=1, capacity=capacity, order=orders(problem.tokens, seed))
    assert (best.sum(axis=(1, 2, 3)) >= other.sum(axis=(1, 2, 3)) - 1e-12).all()
