"""Sections 2.4 and 10.3: noisy top-k gating and its load loss."""

import numpy as np
from properties.implementations import holds
from properties.strategies import distinct_slots, logits, orders, seeds, shuffled, slots, spread_slots


def load_of(B, clean, seed, choices):
    """The load loss with some noise and some scales of it."""
    random = np.random.default_rng(seed)
    scales, noise = random.normal(size=(2, *clean.shape))
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    return B.noisy_top_k_load_loss(clean, scales, noisy, choices=choices)


@holds(wrong="softmax_before_the_choice", drawn=slots)
def test_k_gates_are_positive_and_sum_to_one(B, drawn):
    gates = B.noisy_top_k_affinity(drawn.scores, choices=drawn.choices)
    assert ((gates > 0).sum(axis=2) == drawn.choices).all()
    np.testing.assert_allclose(gates.sum(axis=2), 1, rtol=1e-14)


@holds(wrong="sigmoid_gates", drawn=distinct_slots, seed=seeds)
def test_a_constant_added_to_a_row_changes_no_gate(B, drawn, seed):
    constants = np.random.default_rng(seed).integers(-4, 5, size=(*drawn.scores.shape[:2], 1))
    shifted, gates = (
        B.noisy_top_k_affinity(scores, choices=drawn.choices) for scores in (drawn.scores + constants, drawn.scores)
    )
    np.testing.assert_allclose(shifted, gates, rtol=1e-13)


@holds(wrong="gates_to_the_higher", drawn=slots)
def test_the_gates_are_those_of_token_choice(B, drawn):
    """The experts with a gate are those that Token Choice chooses, ties included, with room for all."""
    gates = B.noisy_top_k_affinity(drawn.scores, choices=drawn.choices)
    routing = B.token_choice(drawn.scores, choices=drawn.choices, capacity=drawn.tokens)
    np.testing.assert_array_equal(gates > 0, routing.dispatch.sum(axis=3) > 0)


@holds(wrong="softmax_before_the_choice", drawn=spread_slots)
def test_with_all_experts_the_gates_are_the_softmax_and_with_one_they_are_one(B, drawn):
    np.testing.assert_allclose(
        B.noisy_top_k_affinity(drawn.scores, choices=drawn.experts), B.softmax_affinity(drawn.scores), rtol=1e-13
    )
    np.testing.assert_array_equal(B.noisy_top_k_affinity(drawn.scores, choices=1).max(axis=2), 1)


@holds(wrong="noise_scale_not_positive", logits=logits, seed=seeds)
def test_noise_moves_logits_in_its_own_direction(B, logits, seed):
    """The scale is a softplus, positive, that grows with the noise logit; without noise nothing moves."""
    noise = np.random.default_rng(seed).normal(size=logits.shape)
    move = B.noisy_top_k_logits(np.zeros(logits.shape), logits, noise)
    np.testing.assert_array_equal(np.sign(move), np.sign(noise))
    assert (np.abs(B.noisy_top_k_logits(np.zeros(logits.shape), logits + 1, noise)) > np.abs(move)).all()
    np.testing.assert_array_equal(B.noisy_top_k_logits(logits, logits, np.zeros(logits.shape)), logits)


@holds(wrong="noisy_load_not_squared", drawn=spread_slots, seed=seeds)
def test_load_is_from_zero_to_experts_minus_one(B, drawn, seed):
    if drawn.experts > drawn.choices:
        assert 0 <= load_of(B, 3 * drawn.scores, seed, drawn.choices) <= drawn.experts - 1 + 1e-12


@holds(wrong="noisy_threshold_with_the_expert", drawn=spread_slots, seed=seeds)
def test_whose_noise_is_small_is_counted(B, drawn, seed):
    """As the scales vanish the load becomes the number of tokens that chose each expert."""
    if drawn.experts > drawn.choices:
        loss = B.noisy_top_k_load_loss(
            drawn.scores, np.full(drawn.scores.shape, -60.0), drawn.scores, choices=drawn.choices
        )
        room = B.token_choice(drawn.scores, choices=drawn.choices, capacity=drawn.tokens).dispatch
        counts = room.sum(axis=(1, 3))
        np.testing.assert_allclose(loss, np.mean((counts.std(axis=1) / counts.mean(axis=1)) ** 2), atol=1e-12)


@holds(wrong="noisy_load_of_all_groups", drawn=spread_slots, seed=seeds)
def test_the_load_loss_is_the_mean_over_groups_whatever_their_order_of_tokens_and_experts(B, drawn, seed):
    if drawn.experts == drawn.choices:
        return
    random = np.random.default_rng(seed)
    scales, noise = random.normal(size=(2, *drawn.scores.shape))
    arrays = [drawn.scores, scales, B.noisy_top_k_logits(drawn.scores, scales, noise)]
    tokens, experts = orders(drawn.tokens, seed)[..., None], shuffled(drawn.experts, seed)
    moved = [np.take_along_axis(array, tokens, axis=1)[:, :, experts] for array in arrays]
    loss = B.noisy_top_k_load_loss(*arrays, choices=drawn.choices)
    np.testing.assert_allclose(B.noisy_top_k_load_loss(*moved, choices=drawn.choices), loss, rtol=1e-9, atol=1e-13)
    each = [B.noisy_top_k_load_loss(*(a[[g, g]] for a in arrays), choices=drawn.choices) for g in range(2)]
    np.testing.assert_allclose(np.mean(each), loss, rtol=1e-9, atol=1e-13)
