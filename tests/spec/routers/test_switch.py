"""Switch: the jitter, its defaults, noise and initial values."""

import numpy as np
import pytest
from properties import holds
from strategies import seeds, spread

from moespec.spec import ROUTERS


@holds(wrong="jitter_added", tokens=spread, seed=seeds)
def test_jitter_is_a_factor_within_epsilon_of_one(B, tokens, seed):
    noise = np.random.default_rng(seed).uniform(-1, 1, tokens.shape)
    np.testing.assert_allclose(B.router_jitter(tokens, noise, epsilon=0.25), tokens * (1 + 0.25 * noise), rtol=1e-14)
    np.testing.assert_array_equal(B.router_jitter(tokens, noise, epsilon=0.0), tokens)
    np.testing.assert_array_equal(B.router_jitter(tokens, None), tokens)


def test_defaults_noise_and_initial_values():
    router = ROUTERS["switch"]
    config = router.options(width=64, experts=16, tokens=64)
    assert (config.choices, config.capacity_factor, config.balance_weight, config.jitter) == (1, 1.25, 0.01, 0.01)
    assert (router.noise(config).shape, router.noise(config).interval) == ((64, 64), (-1.0, 1.0))
    assert router.noise(router.options(width=64, experts=16, tokens=64, jitter=0.0)) is None
    kernel = router.init(np.random.default_rng(0), config)["kernel"]
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx((0.1 / 64) ** 0.5, rel=0.03)
    assert np.abs(kernel).max() <= 2 / 0.8796 * (0.1 / 64) ** 0.5
