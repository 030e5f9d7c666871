"""Switch: its defaults, noise and initial values."""

import numpy as np
import pytest

from moespec.spec import ROUTERS


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
