"""The operations of a vision transformer around its routers, each by its definition."""

import math

import numpy as np
from properties import holds
from scipy.special import log_expit, log_softmax
from scipy.stats import norm
from strategies import one_of, seeds


def normal(seed, *shape):
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


@holds(wrong="attention_not_scaled", seed=seeds)
def test_attention_head_by_head(B, seed):
    """Of images of 3 queries and 5 keys, with 2 heads of 4 entries."""
    query, key, value = normal(seed, 2, 3, 2, 4), normal(seed + 1, 2, 5, 2, 4), normal(seed + 2, 2, 5, 2, 4)
    attended = B.attention(query, key, value)
    for image, head in np.ndindex(2, 2):
        q, k, v = (array[image, :, head] for array in (query, key, value))
        weights = np.exp(q @ k.T / math.sqrt(4))
        expected = weights / weights.sum(axis=1, keepdims=True) @ v
        np.testing.assert_allclose(attended[image, :, head], expected, rtol=1e-11, atol=1e-13)


@holds(wrong="attention_to_all", seed=seeds)
def test_causal_attention_is_that_of_each_beginning(B, seed):
    """Token i attends as the last one of the first i + 1."""
    query, key, value = (normal(seed + i, 2, 4, 2, 4) for i in range(3))
    attended = B.attention(query, key, value, causal=True)
    for i in range(4):
        alone = B.attention(query[:, i : i + 1], key[:, : i + 1], value[:, : i + 1])
        np.testing.assert_allclose(attended[:, i], alone[:, 0], rtol=1e-11, atol=1e-13)


@holds(wrong="patches_column_by_column", seed=seeds)
def test_patches_are_counted_row_by_row_and_mapped_alone(B, seed):
    """Patch i covers row `i // columns` of the grid, and its pixels are read as the kernel is."""
    images, kernel, bias = normal(seed, 2, 4, 6, 3), normal(seed + 1, 2, 2, 3, 5), normal(seed + 2, 5)
    embedded = B.patch_embed(images, kernel, bias)
    for i in range(6):
        row, column = 2 * (i // 3), 2 * (i % 3)
        pixels = images[:, row : row + 2, column : column + 2]
        np.testing.assert_allclose(embedded[:, i], np.tensordot(pixels, kernel, axes=3) + bias, rtol=1e-10, atol=1e-12)


@holds(wrong="sigmoid_gelu", seed=seeds)
def test_both_forms_of_gelu(B, seed):
    """`x Phi(x)`, or by a tanh, which is close but not the same."""
    x = 3 * normal(seed, 4, 8)
    by_tanh = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(B.gelu(x, form="erf"), x * norm.cdf(x), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(B.gelu(x, form="tanh"), by_tanh, rtol=1e-11, atol=1e-14)
    assert 1e-8 < np.abs(by_tanh - x * norm.cdf(x)).max() < 5e-4


@holds(wrong="sigmoid_averaged", seed=seeds)
def test_cross_entropies(B, seed):
    """Answers are no, yes, and in between."""
    random = np.random.default_rng(seed)
    logits, shares = 3 * random.normal(size=(3, 4)), random.dirichlet(np.ones(4), size=3)
    answers = random.integers(0, 3, size=(3, 4)) / 2
    expected = -np.sum(shares * log_softmax(logits, axis=1), axis=1)
    np.testing.assert_allclose(B.softmax_cross_entropy(logits, shares), expected, rtol=1e-11)
    expected = -np.sum(answers * log_expit(logits) + (1 - answers) * log_expit(-logits), axis=1)
    np.testing.assert_allclose(B.sigmoid_cross_entropy(logits, answers), expected, rtol=1e-11)


@holds(wrong="edges_repeated", seed=seeds, size=one_of(1, 3, 5), stride=one_of(1, 2, 3))
def test_a_convolution_is_a_sum_over_pixels_and_channels(B, seed, size, stride):
    """The formula, sum by sum, with a pixel outside of the image left out."""
    x, W, b = normal(seed, 1, 4, 5, 2), normal(seed + 1, size, size, 2, 3), normal(seed + 2, 3)
    y, p = B.convolution(x, W, b, stride=stride), (size - 1) // 2
    assert y.shape == (1, -(-4 // stride), -(-5 // stride), 3)
    padded = np.pad(x[0], ((p, p), (p, p), (0, 0)))
    for r, c in np.ndindex(y.shape[1:3]):
        window = padded[stride * r : stride * r + size, stride * c : stride * c + size]
        np.testing.assert_allclose(y[0, r, c], np.tensordot(window, W, axes=3) + b, rtol=1e-11, atol=1e-12)
