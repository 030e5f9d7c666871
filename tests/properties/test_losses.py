"""Section 10: auxiliary losses, each the mean over groups."""

import numpy as np
from properties.implementations import holds
from properties.strategies import even_logits, logits, orders, seeds, shuffled, spread
from properties.wrong import favouring, load_of_scores, variance_alone


def load_of(B, clean, seed, choices=1):
    """The load loss with some noise, as the router draws it."""
    noise = np.random.default_rng(seed).normal(size=clean.shape) / clean.shape[2]
    return B.load_loss(clean, clean + noise, choices=choices, noise_std=0.25)


@holds(wrong="unbiased_importance", logits=logits)
def test_importance_is_from_zero_to_experts_minus_one(B, logits):
    """CV^2 of a non-negative vector, and the most when one expert has everything."""
    experts = logits.shape[2]
    assert 0 <= B.importance_loss(B.softmax_affinity(4 * logits)) <= experts - 1 + 1e-12
    collapsed = np.zeros(logits.shape)
    collapsed[:, :, -1] = 1
    np.testing.assert_allclose(B.importance_loss(collapsed), experts - 1, rtol=1e-13)


@holds(wrong="importance_not_centred", logits=logits)
def test_importance_is_zero_only_if_experts_are_equally_important(B, logits):
    scores = logits + 4  # positive and on a grid, so that the sums are exact
    totals = scores.sum(axis=1)
    assert (B.importance_loss(scores) > 1e-20) == (totals != totals[:, :1]).any()


@holds(wrong=variance_alone, logits=logits)
def test_scaling_all_scores_changes_nothing(B, logits):
    scores = B.softmax_affinity(logits)
    np.testing.assert_allclose(B.importance_loss(7 * scores), B.importance_loss(scores), rtol=1e-9, atol=1e-14)


@holds(wrong="unbiased_load", logits=logits, seed=seeds)
def test_load_is_from_zero_to_experts_minus_one(B, logits, seed):
    assert 0 <= load_of(B, 4 * logits, seed) <= logits.shape[2] - 1 + 1e-12


@holds(wrong="threshold_of_the_others", logits=logits, seed=seeds)
def test_equal_logits_have_no_load_loss(B, logits, seed):
    """Whatever the threshold of a token is, every expert reaches it with the same probability."""
    equal = logits[:, :, :1] + np.zeros(logits.shape)
    np.testing.assert_allclose(load_of(B, equal, seed), 0, atol=1e-20)


@holds(wrong=load_of_scores, logits=spread, seed=seeds)
def test_a_constant_added_to_a_row_changes_no_load(B, logits, seed):
    constants = np.random.default_rng(seed).normal(size=(*logits.shape[:2], 1))
    np.testing.assert_allclose(load_of(B, logits + constants, seed), load_of(B, logits, seed), rtol=1e-9, atol=1e-13)


@holds(wrong="last_maximum", logits=logits)
def test_the_balance_loss_is_a_mean_of_scores(B, logits):
    """`E sum_e f[e] P[e]`, f the shares of the first maxima: positive, at most E."""
    scores = B.softmax_affinity(logits)
    experts = logits.shape[2]
    share = (scores.argmax(axis=2)[..., None] == np.arange(experts)).mean(axis=1)
    expected = experts * np.mean(np.sum(share * scores.mean(axis=1), axis=1))
    np.testing.assert_allclose(B.balance_loss(scores), expected, rtol=1e-12)
    assert 0 < B.balance_loss(scores) <= experts + 1e-12


@holds(wrong="balance_over_experts", logits=even_logits, seed=seeds)
def test_the_balance_loss_is_one_if_mean_scores_are_equal(B, logits, seed):
    """Also if the shares are not; it is E at full collapse. (It may be less than 1: nothing else is asserted.)"""
    experts = logits.shape[2]
    weights = np.random.default_rng(seed).dirichlet(np.ones(experts), size=len(logits))
    shifted = np.stack([np.roll(weights, token, axis=1) for token in range(logits.shape[1])], axis=1)
    for scores in (shifted, np.full(logits.shape, 1 / experts)):
        np.testing.assert_allclose(B.balance_loss(scores), 1, rtol=1e-12)
    collapsed = np.zeros(logits.shape)
    collapsed[:, :, 0] = 1
    np.testing.assert_allclose(B.balance_loss(collapsed), experts, rtol=1e-13)


@holds(wrong="z_of_the_mean_exponential", logits=logits, seed=seeds)
def test_the_z_loss_is_the_mean_square_of_the_logsumexp(B, logits, seed):
    """It is 0 when each row of `exp(L)` sums to 1, and c^2 when c is added to such a row."""
    normal = np.log(B.softmax_affinity(logits))
    np.testing.assert_allclose(B.z_loss(normal), 0, atol=1e-28)
    constants = np.random.default_rng(seed).normal(size=(*logits.shape[:2], 1))
    np.testing.assert_allclose(B.z_loss(normal + constants), np.mean(constants**2), rtol=1e-9)


@holds(wrong=favouring("importance_loss", 2), logits=spread, seed=seeds)
def test_permuting_tokens_and_experts_changes_no_loss(B, logits, seed):
    """Where no scores are equal."""
    noisy = logits + np.random.default_rng(seed).normal(size=logits.shape) / 4
    tokens, experts = orders(logits.shape[1], seed)[..., None], shuffled(logits.shape[2], seed)

    def losses(*arrays):
        clean, noisy = arrays
        load = B.load_loss(clean, noisy, choices=clean.shape[2], noise_std=0.25)
        scores = B.softmax_affinity(noisy)
        return [B.importance_loss(scores), load, B.balance_loss(scores), B.z_loss(clean)]

    moved = [np.take_along_axis(array, tokens, axis=1)[:, :, experts] for array in (logits, noisy)]
    np.testing.assert_allclose(losses(*moved), losses(logits, noisy), rtol=1e-9, atol=1e-13)


@holds(wrong="balance_of_all_groups", logits=spread, seed=seeds)
def test_a_loss_is_the_mean_over_groups(B, logits, seed):
    def losses(logits):
        scores = B.softmax_affinity(logits)
        return np.array([B.importance_loss(scores), B.balance_loss(scores), B.z_loss(logits),
                         B.load_loss(logits, logits + logits**2 / 8, choices=1, noise_std=0.25)])  # fmt: skip

    alone = [losses(np.stack([group, group])) for group in logits]
    np.testing.assert_allclose(losses(logits), np.mean(alone, axis=0), rtol=1e-11)
