"""Contrastive losses, MoCo v3 and LIMoE's entropies, each by its definition; and what of them carries a gradient."""

import importlib

import numpy as np
import pytest
from properties import holds
from scipy.special import log_expit, log_softmax
from scipy.stats import entropy
from strategies import logits, one_of, seeds

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])


def rows(seed, count):
    """Arrays of 5 standard normal rows, whose norms differ."""
    random = np.random.default_rng(seed)
    return [random.normal(size=(5, 4)) * random.uniform(0.5, 2, size=(5, 1)) for _ in range(count)]


def cosines(x, y):
    x, y = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y))
    return x @ y.T


@holds(wrong="negatives_of_half", seed=seeds, log_scale=one_of(-1.0, 1.0, 6.0))
def test_the_contrastive_loss_is_a_cross_entropy_in_both_directions(B, seed, log_scale):
    first, second = rows(seed, 2)
    scaled = np.exp(log_scale) * cosines(first, second)
    expected = -(np.trace(log_softmax(scaled, 0)) + np.trace(log_softmax(scaled, 1))) / 10
    found = B.contrastive_loss(first, second, np.array(log_scale))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@holds(wrong="pairs_averaged", seed=seeds, bias=one_of(-3.0, -10.0, 1.0))
def test_the_sigmoid_loss_decides_on_each_pair(B, seed, bias):
    first, second = rows(seed, 2)
    logits = np.exp(1.5) * cosines(first, second) + bias
    expected = -sum(log_expit(logits[i, j] if i == j else -logits[i, j]) for i, j in np.ndindex(5, 5)) / 5
    np.testing.assert_allclose(B.sigmoid_loss(first, second, np.array(1.5), np.array(bias)), expected, rtol=1e-6)


@holds(
    wrong="loss_without_its_factor",
    seed=seeds,
    temperature=one_of(1.0, 0.2),
)
def test_moco_compares_a_query_with_the_keys_of_the_other_view(B, seed, temperature):
    q1, q2, k1, k2 = rows(seed, 4)
    expected = 0.0
    for query, key in ((q1, k2), (q2, k1)):
        expected -= 2 * temperature / 5 * np.trace(log_softmax(cosines(query, key) / temperature, 1))
    np.testing.assert_allclose(B.moco_loss(q1, q2, k1, k2, temperature=temperature), expected, rtol=1e-11)


@holds(wrong=("epsilon_in_the_logarithm", "global_entropy_of_all_groups"), logits=logits)
def test_entropies_of_tokens_and_of_their_mean(B, logits):
    scores = B.softmax_affinity(logits)
    of_means = entropy(scores.mean(axis=1), axis=1)
    np.testing.assert_allclose(B.local_entropy_loss(scores), entropy(scores, axis=2).mean(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(B.global_entropy_loss(scores), -of_means.mean(), rtol=1e-9, atol=1e-12)
    lacking = np.maximum(1.0 - of_means, 0).mean()
    np.testing.assert_allclose(B.global_entropy_loss(scores, threshold=1.0), lacking, rtol=1e-9, atol=1e-12)


@BACKENDS
def test_scalars_may_be_numbers_of_python(backend):
    B = importlib.import_module(f"moespec.backends.{backend}")
    first, second, scale, bias = B.from_numpy([*rows(2, 2), np.array(2.0), np.array(-1.0)])
    assert float(B.contrastive_loss(first, second, 2.0)) == float(B.contrastive_loss(first, second, scale))
    assert float(B.sigmoid_loss(first, second, 2.0, -1)) == float(B.sigmoid_loss(first, second, scale, bias))
