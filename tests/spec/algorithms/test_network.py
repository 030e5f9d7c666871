"""Attention head by head and convolutions sum by sum. The stem in tests/models/test_vit.py has both forms of GELU by torch."""

import math

import numpy as np
from properties import holds
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
