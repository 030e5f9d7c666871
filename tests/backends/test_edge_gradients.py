"""Gradients at the edge of what floats can hold: where a scale or a mass vanishes, each backend has the same finite ones."""

import importlib
from contextlib import nullcontext

import numpy as np
import pytest

ALL = pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
BOTH = pytest.mark.parametrize("name", ["jax", "torch"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])

CLEAN = np.zeros((1, 4, 3))


def value_and_gradients(name, dtype, function, *arrays):
    """`function(B, *arrays)` of a backend, compiled where that is quick, and its gradient by each array."""
    pytest.importorskip(name)
    B = importlib.import_module(f"moespec.backends.{name}")
    with importlib.import_module("jax").enable_x64(dtype == "float64") if name == "jax" else nullcontext():
        gradient = B.value_and_grad(lambda arrays: (function(B, *arrays.values()), {}))
        gradient = B.compile(gradient) if name == "jax" else gradient
        (value, _), slopes = B.to_numpy(gradient(B.from_numpy({str(i): a for i, a in enumerate(arrays)}, dtype)))
    return float(value), list(slopes.values())


def load_loss(B, clean, scales, noisy):
    return B.noisy_top_k_load_loss(clean, scales, noisy, choices=1)


@pytest.mark.parametrize(("low", "is_felt"), [(-43.5, True), (-44.0, False)])
@DTYPES
@BOTH
def test_from_which_scale_on_the_load_has_a_gradient(name, dtype, low, is_felt):
    """Logits that are all 0, and noise as small as its scale: a probability that is neither 0 nor 1."""
    scales = np.full(CLEAN.shape, low)
    noisy = np.exp(low) * np.array([[[0.5, -0.25, 0.0], [1.0, 0.5, -1.0], [0.75, 0.25, -0.5], [0.25, -0.5, 0.0]]])
    value, all_slopes = value_and_gradients(name, dtype, load_loss, CLEAN, scales, noisy)
    expected, gradients = value_and_gradients("numpy", None, load_loss, CLEAN, scales, noisy)
    assert [value, expected] == pytest.approx([0.0496865312] * 2, rel=1e-4)
    for gradient, slopes in zip(gradients, all_slopes, strict=True):
        assert gradient.any() == slopes.any() == is_felt
        np.testing.assert_allclose(slopes, gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max())


SELECTORS = np.array([[[[0.5, 0.25, 0.125]], [[0.0, 0.0, 0.0]]]])
CODES = np.array([[[[0.5, 0.25, -0.25]], [[0.5, 0.5, 0.0]], [[0.75, 0.75, 0.125]], [[0.25, 0.125, 0.0]]]])
"""Of five experts: the second and the third are on codes without one, at the end of the step and beyond it."""


@DTYPES
@BOTH
def test_a_selector_that_is_lost_has_a_finite_reachability_and_the_gradient_0(name, dtype):
    """By the selectors, and by their codes, where infinity times a flat step would be NaN; the others keep theirs."""
    value, (slopes,) = value_and_gradients(name, dtype, lambda B, r: B.dselect_k_reachability(r), SELECTORS)
    assert value == pytest.approx(1e6 + 8 / 7, rel=1e-6)
    np.testing.assert_allclose(slopes, [[[[-64 / 49] * 3], [[0.0] * 3]]], rtol=1e-6)

    def by_codes(B, codes):
        return B.dselect_k_reachability(B.dselect_k_selectors(codes, experts=5))

    value, (slopes,) = value_and_gradients(name, dtype, by_codes, CODES)
    rest, (alone,) = value_and_gradients(name, dtype, by_codes, CODES[:, [0, 3]])
    assert value == pytest.approx(2e6 + rest, rel=1e-6)
    assert not slopes[0, [1, 2]].any()
    np.testing.assert_allclose(slopes[:, [0, 3]], alone, rtol=1e-6)
    assert alone.any()


def rows(count):
    """Arrays of 5 rows."""
    return np.random.default_rng(1).normal(size=(count, 5, 4))


@ALL
def test_keys_are_constants(name):
    _, slopes = value_and_gradients(name, None, lambda B, *arrays: B.moco_loss(*arrays), *rows(4))
    assert [bool(slope.any()) for slope in slopes] == [True, True, False, False]


@ALL
def test_gradients_of_zeros_are_finite(name):
    """Of features that are 0, of features in which a batch does not differ, and of scores without an expert."""

    def total(B, first, second, certain, equal, log_scale):
        moco = B.moco_loss(first, second, second, first)
        entropies = B.local_entropy_loss(certain) + B.global_entropy_loss(certain, threshold=1.5)
        return B.contrastive_loss(first, second, log_scale) + moco + entropies + B.sum(B.batch_norm(equal))

    first, second = rows(2)
    first[2] = 0
    certain = np.eye(4)[None, [0, 1, 1]]
    _, slopes = value_and_gradients(name, None, total, first, second, certain, np.ones((3, 2)), np.array(2.0))
    assert all(np.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize("norm", ["sum", "euclidean"])
@BOTH
def test_tokens_whose_choices_were_all_dropped(name, norm):
    """Their weights have no sum to be divided by, and their scores have the gradient 0 instead of NaN."""

    def weights(B, scores):
        return B.sum(B.token_choice(scores, choices=1, capacity=1, normalize=norm).weight)

    value, (slopes,) = value_and_gradients(name, "float64", weights, np.array([[[0.7, 0.3], [0.8, 0.2], [0.9, 0.1]]]))
    assert (value, slopes.shape) == (1.0, (1, 3, 2))
    assert not slopes[0, 1:].any()
