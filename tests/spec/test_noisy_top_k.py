"""Noisy top-k gating: worked numbers, definitions written another way, Monte Carlo, and the router."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from moespec import spec
from moespec.spec import (
    ROUTERS,
    noisy_top_k_affinity,
    noisy_top_k_load_loss,
    noisy_top_k_logits,
    slot_tokens,
)
from moespec.spec.examples import LOGITS, NOISE

SCALES = np.array([[0.0, 1, -1], [2, 0, 0.5], [-2, 1, 0], [0, 0, 0], [1, -1, 3], [0.5, 0.5, 0.5]])


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def test_worked_numbers():
    noisy = noisy_top_k_logits(LOGITS, np.zeros((6, 3)), NOISE)
    np.testing.assert_allclose(noisy, LOGITS + np.log(2) * NOISE, rtol=1e-15)
    assert noisy_top_k_load_loss(LOGITS, 0 * LOGITS, noisy, choices=1) == pytest.approx(0.433987856924, abs=1e-12)
    assert noisy_top_k_load_loss(LOGITS, 0 * LOGITS, noisy, choices=2) == pytest.approx(0.084824473048, abs=1e-12)


def test_the_scale_is_a_softplus_that_neither_overflows_nor_is_cut():
    scales = np.array([[-700.0, -1.0, 0.0, 1.0, 30.0, 800.0]])
    noisy = noisy_top_k_logits(np.zeros((1, 6)), scales, np.ones((1, 6)))
    expected = [[np.exp(-700.0), np.log1p(np.exp(-1.0)), np.log(2), np.log1p(np.e), 30 + np.exp(-30.0), 800]]
    np.testing.assert_allclose(noisy, expected, rtol=1e-14)
    np.testing.assert_array_equal(noisy_top_k_logits(LOGITS, SCALES, None), LOGITS)


@pytest.mark.parametrize("choices", [1, 2, 3, 4, 5])
def test_the_gates_are_the_softmax_of_the_best_subset(choices):
    noisy = draw(0, 8, 5)
    gates = noisy_top_k_affinity(noisy, choices=choices)
    for row, found in zip(noisy, gates, strict=True):
        best = max(combinations(range(5), choices), key=lambda subset: sum(row[list(subset)]))
        total = sum(np.exp(row[e]) for e in best)
        expected = [np.exp(row[e]) / total if e in best else 0.0 for e in range(5)]
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_ties_go_to_the_lower_expert():
    assert noisy_top_k_affinity([[0.0, -0.0, 0.0]], choices=2).tolist() == [[0.5, 0.5, 0.0]]
    assert noisy_top_k_affinity([[0.0, 1.0, 0.0]], choices=2)[0, 2] == 0


def test_with_one_choice_the_gate_is_one_and_has_no_derivative():
    gates = noisy_top_k_affinity(LOGITS + 1e-30j * NOISE, choices=1)
    assert gates.sum() == 6
    assert not gates.imag.any()


def probabilities(clean, scales, noisy, choices):
    """The probability that an expert stays among the chosen, expert by expert."""
    found = np.empty(clean.shape)
    for t, e in np.ndindex(clean.shape):
        threshold = sorted((noisy[t, i] for i in range(clean.shape[1]) if i != e), reverse=True)[choices - 1]
        found[t, e] = norm.cdf((clean[t, e] - threshold) / np.log1p(np.exp(scales[t, e])))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_definition(seed):
    clean, scales, noise = draw(seed, 3, 9, 5)
    noisy = noisy_top_k_logits(clean, scales, noise)
    for choices in range(1, 5):
        load = probabilities(clean, scales, noisy, choices).sum(axis=0)
        expected = (np.std(load) / np.mean(load)) ** 2
        assert noisy_top_k_load_loss(clean, scales, noisy, choices=choices) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("choices", [1, 2])
def test_the_load_is_the_chance_to_be_chosen_when_the_own_noise_is_drawn_again(choices):
    """Monte Carlo with 200 000 draws for each expert: 3 standard errors of a share are 0.0034."""
    noisy = noisy_top_k_logits(LOGITS, SCALES, NOISE)
    draws = draw(5, 200_000)
    expected = probabilities(LOGITS, SCALES, noisy, choices)
    for t, e in np.ndindex(LOGITS.shape):
        again = np.tile(noisy[t], (len(draws), 1))
        again[:, e] = LOGITS[t, e] + draws * np.log1p(np.exp(SCALES[t, e]))
        chosen = np.argsort(-again, axis=1, kind="stable")[:, :choices]
        assert (chosen == e).any(axis=1).mean() == pytest.approx(expected[t, e], abs=0.0034)
    load = expected.sum(axis=0)
    loss = noisy_top_k_load_loss(LOGITS, SCALES, noisy, choices=choices)
    assert loss == pytest.approx((np.std(load) / np.mean(load)) ** 2, rel=1e-12)


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


def route(noise=NOISE, *, kernel=None, noise_kernel=None, **options):
    """The router on the worked example: with the identity as kernel the tokens are the logits."""
    config = ROUTERS["noisy_top_k"].options(width=3, experts=3, tokens=6, **options)
    params = {
        "kernel": np.eye(3) if kernel is None else kernel,
        "noise_kernel": np.zeros((3, 3)) if noise_kernel is None else noise_kernel,
    }
    return ROUTERS["noisy_top_k"].route(params, LOGITS, config, noise=noise, train=noise is not None)


def test_the_router_selects_by_noisy_logits_and_combines_with_gates():
    noise_kernel = draw(3, 3, 3)
    noisy = noisy_top_k_logits(LOGITS, LOGITS @ noise_kernel, NOISE)
    gates = noisy_top_k_affinity(noisy, choices=2)
    output = route(noise_kernel=noise_kernel)
    expected = spec.token_choice(noisy, choices=2, capacity=6, combine_scores=gates)
    np.testing.assert_array_equal(output.routing.dispatch, expected.dispatch)
    np.testing.assert_array_equal(output.routing.combine, expected.combine)
    np.testing.assert_allclose(output.routing.combine.sum(axis=(1, 2)), 1)
    load = noisy_top_k_load_loss(LOGITS, LOGITS @ noise_kernel, noisy, choices=2)
    assert output.losses["importance"] == pytest.approx(0.1 * float(spec.importance_loss(gates)))
    assert output.losses["load"] == pytest.approx(0.1 * float(load))
    assert output.metrics["dropped"] == 0


def test_worked_routing():
    assert slot_tokens(route(None, choices=1).routing)[:, :4].tolist() == [[0, 1, 4, 6], [2, 5, 6, 6], [3, 6, 6, 6]]
    assert slot_tokens(route(None, choices=2, capacity_factor=0.5).routing).tolist() == [[0, 1], [2, 5], [3, 4]]


def test_without_noise_there_is_no_load_loss():
    assert list(route(None).losses) == ["importance"]
    assert list(route(importance_weight=0.0).losses) == ["load"]


def test_initial_parameters_are_zero():
    config = ROUTERS["noisy_top_k"].options(width=3, experts=4, tokens=6)
    params = ROUTERS["noisy_top_k"].init(np.random.default_rng(0), config)
    assert {name: (value.shape, value.dtype) for name, value in params.items()} == dict.fromkeys(
        ("kernel", "noise_kernel"), ((3, 4), np.float32)
    )
    assert not any(value.any() for value in params.values())
    noise = ROUTERS["noisy_top_k"].noise(config)
    assert (noise.shape, noise.interval) == ((6, 4), None)


@pytest.mark.parametrize("experts", [1, 3])
def test_where_every_expert_is_chosen_the_load_is_that_of_all_tokens(experts):
    """The load of the authors' code is then the number of gates above 0."""
    options = ROUTERS["noisy_top_k"].options(width=3, experts=experts, tokens=6, choices=experts)
    params = {"kernel": np.eye(3)[:, :experts], "noise_kernel": np.zeros((3, experts))}
    output = ROUTERS["noisy_top_k"].route(params, LOGITS, options, noise=NOISE[:, :experts], train=True)
    gates = output.routing.combine.sum(axis=2)
    load = (gates > 0).sum(axis=0)
    assert output.losses["load"] == 0.1 * np.var(load) / np.mean(load) ** 2 == 0
    np.testing.assert_allclose(gates.sum(axis=1), 1)
