"""The complex step where it is delicate. That nothing else drops the imaginary part, `golden` checks: it compares each gradient
with central differences, and each floating input has one (`tests/conformance/golden/test_derived.py`)."""

import numpy as np
import pytest

from moespec import spec
from moespec.spec.numerics import softplus

STEP = 1e-30
RANDOM = np.random.default_rng(0)
UTILITY = spec.softmax_affinity(RANDOM.normal(size=(6, 3)))
DUALS = {
    "semi_dual gradient": lambda a, b, u: spec.transport_semi_dual(a, u, capacity=3, regularization=0.5).gradient,
    "semi_dual plan": lambda a, b, u: spec.transport_semi_dual(a, u, capacity=3).plan,
    "dual plan": lambda a, b, u: spec.transport_dual(a, b, u, capacity=3).plan,
}


@pytest.mark.parametrize("name", DUALS)
def test_what_a_dual_returns_beside_its_value_has_derivatives(name):
    """Those that no vector has."""
    arrays = [RANDOM.normal(size=6) / 3, RANDOM.normal(size=3) / 3, UTILITY]
    directions = [RANDOM.normal(size=array.shape) for array in arrays]
    ahead, behind, stepped = (
        DUALS[name](*(array + h * v for array, v in zip(arrays, directions, strict=True)))
        for h in (1e-6, -1e-6, STEP * 1j)
    )
    assert np.any(stepped.imag != 0)
    np.testing.assert_allclose(stepped.imag / STEP, (ahead - behind) / 2e-6, rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("x", [-600.0, -40.0, -36.0, -20.0, -1.0, 0.0, 1.0, 40.0, 700.0])
def test_softplus_is_as_exact_under_the_complex_step_as_without(x):
    """A logarithm of `1 + exp(x)` loses all digits of a small exponential."""
    stepped = softplus(np.array([x + STEP * 1j]))
    np.testing.assert_allclose(stepped.real, np.logaddexp(x, 0), rtol=1e-15)
    np.testing.assert_allclose(stepped.imag / STEP, 1 / (1 + np.exp(-x)), rtol=1e-14)
