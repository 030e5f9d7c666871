"""The sigmoid loss pair by pair, and scalars of contrastive losses."""

import importlib

import numpy as np
import pytest
from properties import holds
from scipy.special import log_expit
from strategies import one_of, seeds


def rows(seed, count):
    """Arrays of 5 standard normal rows, whose norms differ."""
    random = np.random.default_rng(seed)
    return [random.normal(size=(5, 4)) * random.uniform(0.5, 2, size=(5, 1)) for _ in range(count)]


def cosines(x, y):
    x, y = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y))
    return x @ y.T


@holds(wrong="pairs_averaged", seed=seeds, bias=one_of(-3.0, -10.0, 1.0))
def test_the_sigmoid_loss_decides_on_each_pair(B, seed, bias):
    first, second = rows(seed, 2)
    logits = np.exp(1.5) * cosines(first, second) + bias
    expected = -sum(log_expit(logits[i, j] if i == j else -logits[i, j]) for i, j in np.ndindex(5, 5)) / 5
    np.testing.assert_allclose(B.sigmoid_loss(first, second, np.array(1.5), np.array(bias)), expected, rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_scalars_may_be_numbers_of_python(backend):
    B = importlib.import_module(f"moespec.backends.{backend}")
    first, second, scale, bias = B.from_numpy([*rows(2, 2), np.array(2.0), np.array(-1.0)])
    assert float(B.contrastive_loss(first, second, 2.0)) == float(B.contrastive_loss(first, second, scale))
    assert float(B.sigmoid_loss(first, second, 2.0, -1)) == float(B.sigmoid_loss(first, second, scale, bias))
