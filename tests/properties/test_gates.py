"""Sections 2.5, 2.6, 7.3, 11 and 20: jitter, renormalised weights, and the routers Switch, S-BASE and GShard."""

import numpy as np
from properties.implementations import holds
from properties.strategies import logits, one_of, seeds, slots, spread, spread_slots
from properties.test_routers import drawn as inputs
from properties.test_routers import route

GROUPS, T, E = 2, 6, 3


def routed(B, name, seed, noise=None, **fields):
    """The router on random tokens."""
    tokens, kernel, _ = inputs(seed)
    given = {} if noise is None else {"noise": noise}
    return B.run(route, tokens=tokens, params={"kernel": kernel}, **given, name=name, **fields)


def scores_of(B, seed):
    """The softmax of the logits."""
    tokens, kernel, _ = inputs(seed)
    return B.softmax_affinity(B.router_logits(tokens, kernel))


@holds(wrong="jitter_added", tokens=spread, seed=seeds)
def test_jitter_multiplies_by_at_most_one_plus_epsilon(B, tokens, seed):
    noise = np.random.default_rng(seed).uniform(-1, 1, tokens.shape)
    jittered = B.router_jitter(tokens, noise, epsilon=0.25)
    assert (np.abs(jittered - tokens) <= 0.25 * np.abs(tokens) * (1 + 1e-12)).all()
    np.testing.assert_allclose(B.router_jitter(3 * tokens, noise, epsilon=0.25), 3 * jittered, rtol=1e-13)
    np.testing.assert_array_equal(B.router_jitter(tokens, 0 * noise, epsilon=0.25), tokens)


@holds(wrong="normalised_over_all_experts", drawn=slots)
def test_weights_of_the_chosen_sum_to_one(B, drawn):
    """With room for all: over the experts that Token Choice chooses, ties included, whatever the weights are."""
    weights = B.softmax_affinity(drawn.scores[..., ::-1])
    divided = B.normalize_selected(drawn.scores, weights, choices=drawn.choices)
    chosen = B.token_choice(drawn.scores, choices=drawn.choices, capacity=drawn.tokens).dispatch.sum(axis=3)
    np.testing.assert_allclose((divided * chosen).sum(axis=2), 1, rtol=1e-13)


@holds(wrong="selected_not_normalised", drawn=spread_slots)
def test_scaling_the_weights_of_a_token_changes_nothing(B, drawn):
    weights = B.softmax_affinity(drawn.scores)
    factors = 1 + np.arange(drawn.tokens)[:, None]
    scaled = B.normalize_selected(drawn.scores, factors * weights, choices=drawn.choices)
    np.testing.assert_allclose(scaled, B.normalize_selected(drawn.scores, weights, choices=drawn.choices), rtol=1e-13)


@holds(wrong="switch_gate_of_one", seed=seeds)
def test_a_kept_token_has_its_largest_probability(B, seed):
    """`output = A[t, e] f_e(x)`: one expert at most, the first maximum, with its softmax."""
    found, scores = routed(B, "switch", seed), scores_of(B, seed)
    dispatch = found["dispatch"].sum(axis=3)
    assert (dispatch.sum(axis=2) <= 1).all()
    np.testing.assert_allclose(found["combine"].sum(axis=3), dispatch * scores.max(axis=2, keepdims=True), rtol=1e-12)


@holds(wrong="s_base_with_a_capacity", seed=seeds)
def test_nothing_is_dropped_and_evaluation_takes_the_largest_logit(B, seed):
    found = routed(B, "s_base", seed)
    dispatch = found["dispatch"].sum(axis=3)
    np.testing.assert_array_equal(dispatch.sum(axis=2), 1)
    np.testing.assert_array_equal(dispatch.argmax(axis=2), scores_of(B, seed).argmax(axis=2))


@holds(wrong="second_kept_if_small", logits=logits, seed=seeds, more=one_of(0.0, 0.25))
def test_a_smaller_draw_keeps_no_fewer_second_experts(B, logits, seed, more):
    """The first is always asked for; a draw below 0 keeps every second one, equal gates all of them."""
    if logits.shape[2] < 2:
        return
    gates = B.normalize_selected(B.softmax_affinity(logits), choices=2)
    noise = np.random.default_rng(seed).uniform(size=logits.shape[:2])
    kept, fewer = B.gshard_keep(gates, noise), B.gshard_keep(gates, noise + more)
    assert kept[..., 0].all()
    assert (kept >= fewer).all()
    assert B.gshard_keep(gates, -noise - 1e-9)[..., 1].all()


@holds(wrong="gshard_unkept_take_slots", seed=seeds)
def test_a_second_expert_that_is_not_kept_is_nowhere(B, seed):
    """With a draw that keeps none, and room for all, GShard sends each token to its best expert."""
    noise = np.full((GROUPS, T), 2.0)
    found = routed(B, "gshard", seed, noise, capacity_factor=3.0)
    dispatch = found["dispatch"].sum(axis=3)
    np.testing.assert_array_equal(dispatch.sum(axis=2), 1)
    np.testing.assert_array_equal(dispatch.argmax(axis=2), scores_of(B, seed).argmax(axis=2))
