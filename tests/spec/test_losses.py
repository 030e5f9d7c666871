"""Auxiliary losses: worked numbers, definitions written another way, Monte Carlo."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from moespec.spec import ContractError, ShapeError, balance_loss, importance_loss, load_loss, softmax_affinity, z_loss
from moespec.spec.examples import LOGITS, NOISE

SCORES = softmax_affinity(LOGITS)
NOISY = LOGITS + NOISE / 3


def test_worked_numbers():
    assert importance_loss(SCORES) == pytest.approx(0.1854715624109903, abs=1e-14)
    assert load_loss(LOGITS, NOISY, choices=1, noise_std=1 / 3) == pytest.approx(0.2046177020272181, abs=1e-14)
    assert load_loss(LOGITS, NOISY, choices=2, noise_std=1 / 3) == pytest.approx(0.1401298437709097, abs=1e-14)
    assert balance_loss(SCORES) == pytest.approx(1.1708880193447664, abs=1e-14)
    assert balance_loss(softmax_affinity(NOISY)) == pytest.approx(1.3733799500799186, abs=1e-14)
    assert z_loss(LOGITS) == pytest.approx(4.5349617537152485, abs=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_definitions(seed):
    random = np.random.default_rng(seed)
    logits, noise = random.normal(size=(9, 4)), random.normal(size=(9, 4))
    scores, noisy = softmax_affinity(logits), logits + noise / 4
    importance = scores.sum(axis=0)
    assert importance_loss(scores) == pytest.approx((np.std(importance) / np.mean(importance)) ** 2, rel=1e-12)
    for choices in range(1, 5):
        threshold = np.sort(noisy, axis=1)[:, -choices, None]
        load = norm.sf(threshold, loc=logits, scale=1 / 4).sum(axis=0)
        expected = (np.std(load) / np.mean(load)) ** 2
        assert load_loss(logits, noisy, choices=choices, noise_std=1 / 4) == pytest.approx(expected, rel=1e-11)
    share = np.mean(scores == scores.max(axis=1, keepdims=True), axis=0)
    assert balance_loss(scores) == pytest.approx(4 * np.dot(share, scores.mean(axis=0)), rel=1e-13)
    assert z_loss(logits) == pytest.approx(np.mean(logsumexp(logits, axis=1) ** 2), rel=1e-13)


def test_the_load_is_a_probability():
    random = np.random.default_rng(0)
    threshold = np.sort(NOISY, axis=1)[:, -2, None]
    draws = LOGITS + random.normal(size=(40000, 6, 3)) / 3
    load = (draws >= threshold).mean(axis=0).sum(axis=0)
    expected = (np.std(load) / np.mean(load)) ** 2
    assert load_loss(LOGITS, NOISY, choices=2, noise_std=1 / 3) == pytest.approx(expected, abs=5e-3)


def test_the_threshold_counts_the_expert_itself():
    """The best expert is measured against its own noisy logit, so without realised noise it passes half of the time."""
    logits = np.array([[9.0, 0.0]])
    assert load_loss(logits, logits, choices=1, noise_std=1.0) == pytest.approx(1)  # loads 1/2 and 0
    assert load_loss(logits, logits + 1.0, choices=1, noise_std=1.0) == pytest.approx(1)  # loads Phi(-1) and 0
    assert load_loss(logits, logits, choices=2, noise_std=1.0) == pytest.approx(1 / 9)  # loads 1 and 1/2


def test_equal_loads_have_derivative_zero():
    stepped = importance_loss(np.full((2, 2), 0.5) + 1e-30j * np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert stepped.imag / 1e-30 == pytest.approx(0, abs=1e-50)


def test_balance_loss_takes_the_first_maximum():
    assert balance_loss([[0.5, 0.5, 0.0]]) == 1.5
    assert balance_loss(np.array([[0.5, 0.5, 0.0]]) + 1e-30j * np.array([[0.0, 1.0, 0.0]])).real == 1.5


def test_without_any_load_the_variation_is_undefined():
    with pytest.raises(ContractError, match="scores: every expert has a total of 0"):
        importance_loss(np.zeros((2, 3)))
    with pytest.raises(ContractError, match="logits: every expert has a total of 0"):
        load_loss(np.zeros((1, 2)), np.full((1, 2), 1e3), choices=1, noise_std=1e-2)


@pytest.mark.parametrize("experts", [2, 3, 8, 64])
def test_the_balance_loss_can_be_below_1(experts):
    barely = np.full((experts + 1, experts), 1 / experts) + 1e-9 * np.eye(experts)[[0] * (experts + 1)]
    certain = np.eye(experts)[1:]
    expected = 0.75 + 0.25 / experts
    assert balance_loss(np.vstack([barely, certain])) == pytest.approx(expected, abs=1e-6)
    less, more = (np.vstack([barely[:-1], certain]), np.vstack([barely, barely[:1], certain]))
    assert min(balance_loss(less), balance_loss(more)) > expected


def test_rows_of_different_lengths():
    for function in (importance_loss, z_loss):
        with pytest.raises(ShapeError, match="rows have different lengths"):
            function([[1.0, 2.0], [3.0]])
