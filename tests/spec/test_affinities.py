"""Softmax, gating noise and Sinkhorn: worked numbers and independent definitions."""

import numpy as np
import pytest
from scipy.special import softmax as scipy_softmax

from moespec.spec import add_gating_noise, router_logits, sinkhorn_affinity, softmax_affinity
from moespec.spec.examples import LOGITS, NOISE

RANDOM = np.random.default_rng(0)


def test_router_logits_are_a_product():
    tokens, kernel = RANDOM.normal(size=(7, 4)), RANDOM.normal(size=(4, 3))
    np.testing.assert_allclose(router_logits(tokens, kernel), tokens @ kernel, rtol=1e-14)


def test_gating_noise_has_standard_deviation_one_over_experts():
    np.testing.assert_array_equal(add_gating_noise(LOGITS, NOISE), LOGITS + 1 / 3 * NOISE)
    np.testing.assert_array_equal(add_gating_noise(LOGITS, NOISE, multiplier=2.0), LOGITS + 2 / 3 * NOISE)
    np.testing.assert_array_equal(add_gating_noise(LOGITS, NOISE, multiplier=0), LOGITS)
    np.testing.assert_array_equal(add_gating_noise(LOGITS, None), LOGITS)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_softmax(scale):
    logits = scale * RANDOM.normal(size=(6, 5))
    np.testing.assert_allclose(softmax_affinity(logits), scipy_softmax(logits, axis=1), rtol=1e-13)


def test_sinkhorn_in_the_kernel_domain():
    kernel = np.exp(LOGITS)
    u, v = np.ones(6), np.ones(3)
    for iterations in range(1, 30):
        v = 2.0 / (kernel.T @ u)
        u = 1.0 / (kernel @ v)
        plan = sinkhorn_affinity(LOGITS, iterations=iterations)
        np.testing.assert_allclose(plan, u[:, None] * kernel * v, rtol=1e-13)


def test_sinkhorn_objective_at_convergence():
    plan = sinkhorn_affinity(LOGITS, iterations=500)
    assert np.sum(plan * (np.log(plan) - LOGITS)) == pytest.approx(-11.498879312014864, abs=1e-12)
    np.testing.assert_allclose(plan.sum(axis=0), 2.0, rtol=1e-13)
    potentials = np.log(plan) - LOGITS
    np.testing.assert_allclose(potentials - potentials[:1] - potentials[:, :1] + potentials[0, 0], 0, atol=1e-13)


def column_error(plan):
    tokens, experts = plan.shape
    return np.max(np.abs(plan.sum(axis=0) - tokens / experts))


def test_tolerance_stops_after_the_first_iteration_that_meets_it():
    errors = [column_error(sinkhorn_affinity(LOGITS, iterations=n)) for n in range(1, 15)]
    for n in range(1, 10):
        between = (errors[n] + errors[n - 1]) / 2  # met by iteration n + 1, not by n
        stopped = sinkhorn_affinity(LOGITS, iterations=15, tolerance=between)
        np.testing.assert_array_equal(stopped, sinkhorn_affinity(LOGITS, iterations=n + 1))
    np.testing.assert_array_equal(
        sinkhorn_affinity(LOGITS, iterations=3, tolerance=1e-300), sinkhorn_affinity(LOGITS, iterations=3)
    )


@pytest.mark.parametrize("excess", [1.0, -1.0])
def test_tolerance_bounds_the_error_on_both_sides(excess):
    logits = np.array([[excess, 0.0, 0.0], [excess, 0.0, 0.0], [0.0, 0.3, 0.1]])
    errors = [column_error(sinkhorn_affinity(logits, iterations=n)) for n in (1, 2)]
    assert errors[1] < errors[0]
    stopped = sinkhorn_affinity(logits, iterations=9, tolerance=(errors[0] + errors[1]) / 2)
    np.testing.assert_array_equal(stopped, sinkhorn_affinity(logits, iterations=2))


def test_the_numbers_of_iterations_in_the_documentation_suffice():
    logits = np.random.default_rng(3).normal(size=(256, 32))
    assert column_error(sinkhorn_affinity(logits)) / 8 < 1e-14
    assert column_error(sinkhorn_affinity(4 * logits)) / 8 > 1e-8


def test_row_constants_change_the_plan_before_convergence():
    shifted = LOGITS + np.arange(6.0)[:, None] / 2
    assert np.max(np.abs(sinkhorn_affinity(shifted, iterations=1) - sinkhorn_affinity(LOGITS, iterations=1))) > 1e-2
    np.testing.assert_allclose(
        sinkhorn_affinity(shifted, iterations=300), sinkhorn_affinity(LOGITS, iterations=300), atol=1e-14
    )
