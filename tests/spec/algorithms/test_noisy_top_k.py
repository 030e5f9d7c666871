"""Noisy top-k gating: its load expert by expert, and where scales vanish."""

import numpy as np
import pytest
from properties import holds
from scipy.stats import norm
from strategies import seeds, spread_slots

from moespec.spec import noisy_top_k_load_loss, noisy_top_k_logits


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def test_the_scale_neither_overflows_nor_is_cut():
    scales = np.array([[-700.0, -1.0, 0.0, 1.0, 30.0, 800.0]])
    noisy = noisy_top_k_logits(np.zeros((1, 6)), scales, np.ones((1, 6)))
    expected = [[np.exp(-700.0), np.log1p(np.exp(-1.0)), np.log(2), np.log1p(np.e), 30 + np.exp(-30.0), 800]]
    np.testing.assert_allclose(noisy, expected, rtol=1e-14)


def probabilities(clean, scales, noisy, choices):
    """The probability that an expert stays among the chosen, expert by expert of (..., experts)."""
    stay = np.empty(clean.shape)
    for *t, e in np.ndindex(clean.shape):
        row, place = noisy[tuple(t)], (*t, e)
        threshold = sorted((row[i] for i in range(len(row)) if i != e), reverse=True)[choices - 1]
        stay[place] = norm.cdf((clean[place] - threshold) / np.log1p(np.exp(scales[place])))
    return stay


@holds(wrong=("noisy_load_unbiased", "noisy_threshold_with_the_expert"),
       problem=spread_slots, seed=seeds)  # fmt: skip
def test_the_load_is_that_of_the_probabilities(B, problem, seed):
    if problem.experts == problem.choices:
        return
    scales, noise = draw(seed, 2, *problem.scores.shape)
    noisy = B.noisy_top_k_logits(problem.scores, scales, noise)
    load = probabilities(problem.scores, scales, noisy, problem.choices).sum(axis=1)
    loss = B.noisy_top_k_load_loss(problem.scores, scales, noisy, choices=problem.choices)
    np.testing.assert_allclose(loss, np.mean((load.std(axis=1) / load.mean(axis=1)) ** 2), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("low", [-50.0, -300.0, -800.0])
def test_where_the_scale_vanishes_the_load_counts(low):
    """1 above the threshold, 0 below and 1/2 at it, also where the softplus is 0; with no gradient, not even there."""
    clean = np.array([[0.0, 1.0, 2.0], [1.0, 3.0, 1.0], [0.5, 0.0, 0.5]])
    load = np.array([0 + 0 + 0.5, 0 + 1 + 0, 1 + 0 + 0.5])
    expected = (np.std(load) / np.mean(load)) ** 2
    scales = np.full(clean.shape, low)
    assert noisy_top_k_load_loss(clean, scales, clean, choices=1) == pytest.approx(expected, rel=1e-15)
    steps = 1e-30j * draw(6, 3, *clean.shape)
    for moved in np.eye(3)[:, :, None, None] * steps:  # each argument alone
        stepped = [array + step for array, step in zip((clean, scales, clean), moved, strict=True)]
        assert noisy_top_k_load_loss(*stepped, choices=1).imag == 0
