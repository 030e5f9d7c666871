"""Section 2: softmax affinity and gating noise."""

import numpy as np
from properties.implementations import holds
from properties.strategies import GROUPS, distinct, logits, number, orders, seeds, shuffled, spread
from properties.wrong import favouring


@holds(wrong="sigmoid_affinity", logits=logits)
def test_rows_sum_to_one_and_are_positive(B, logits):
    affinity = B.softmax_affinity(logits)
    assert (affinity > 0).all()
    np.testing.assert_allclose(affinity.sum(axis=2), 1, rtol=1e-14)


@holds(wrong="softmax_over_tokens", logits=logits, seed=seeds)
def test_a_constant_added_to_a_row_changes_nothing(B, logits, seed):
    constants = np.random.default_rng(seed).normal(scale=8, size=(*logits.shape[:2], 1))
    np.testing.assert_allclose(B.softmax_affinity(logits + constants), B.softmax_affinity(logits), rtol=1e-13)


@holds(wrong=favouring("softmax_affinity", 2), logits=logits, seed=seeds)
def test_permuting_experts_and_tokens_permutes_the_affinity(B, logits, seed):
    tokens, experts = orders(logits.shape[1], seed)[..., None], shuffled(logits.shape[2], seed)
    permuted = B.softmax_affinity(np.take_along_axis(logits, tokens, axis=1)[:, :, experts])
    affinity = np.take_along_axis(B.softmax_affinity(logits), tokens, axis=1)[:, :, experts]
    np.testing.assert_allclose(permuted, affinity, rtol=1e-14)


@holds(wrong="softmax_over_tokens", logits=logits, seed=seeds)
def test_the_affinity_minimises_cost_minus_entropy(B, logits, seed):
    """Of all matrices with rows that sum to 1 it has the least `<A, -L> + sum A log A`, minus the logsumexp of the rows."""

    def objective(affinity):
        return np.sum(affinity * (np.log(affinity) - logits), axis=2)

    least = objective(B.softmax_affinity(logits))
    np.testing.assert_allclose(least, -np.logaddexp.reduce(logits, axis=2), rtol=1e-12, atol=1e-12)
    other = np.random.default_rng(seed).dirichlet(np.ones(logits.shape[2]), size=logits.shape[:2]) + 1e-300
    assert (objective(other) >= least - 1e-12).all()


@holds(wrong="softmax_over_tokens", logits=distinct)
def test_a_row_keeps_its_order(B, logits):
    """So the K best logits are the K best scores (pitfall i)."""
    np.testing.assert_array_equal(np.argsort(B.softmax_affinity(logits), axis=2), np.argsort(logits, axis=2))


@holds(wrong="maximum_not_subtracted", logits=logits)
def test_large_logits_do_not_overflow(B, logits):
    """The maximum of a row is subtracted before `exp`."""
    affinity = B.softmax_affinity(1000 * logits)
    assert np.isfinite(affinity).all()
    np.testing.assert_allclose(affinity.sum(axis=2), 1, rtol=1e-14)


@holds(wrong="logits_are_cosines", tokens=spread, seed=seeds)
def test_logits_are_linear_without_a_bias(B, tokens, seed):
    """`router_logits` of a sum of tokens is the sum, and the identity for a kernel returns the tokens."""
    other, eye = np.random.default_rng(seed).normal(size=tokens.shape), np.eye(tokens.shape[2])
    summed = B.router_logits(tokens - 2 * other, eye[:, ::-1])
    apart = B.router_logits(tokens, eye[:, ::-1]) - 2 * B.router_logits(other, eye[:, ::-1])
    np.testing.assert_allclose(summed, apart, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(B.router_logits(tokens, eye), tokens, rtol=1e-14)


@holds(wrong="noise_variance", logits=logits, seed=seeds, multiplier=number(0.5, 3.0))
def test_noise_has_a_standard_deviation_of_the_multiplier_over_the_experts(B, logits, seed, multiplier):
    noise = np.random.default_rng(seed).normal(size=logits.shape)
    noisy = B.add_gating_noise(logits, noise, multiplier=multiplier)
    np.testing.assert_allclose(noisy, logits + multiplier * noise / logits.shape[2], rtol=1e-13, atol=1e-13)


@holds(wrong="multiplier_of_zero_is_one", logits=logits)
def test_without_noise_logits_are_unchanged(B, logits):
    """Noise that is absent, zero, or multiplied by zero."""
    ones = np.ones((GROUPS, *logits.shape[1:]))
    for noisy in (
        B.add_gating_noise(logits, None),
        B.add_gating_noise(logits, 0 * ones),
        B.add_gating_noise(logits, ones, multiplier=0.0),
    ):
        np.testing.assert_array_equal(noisy, logits)
