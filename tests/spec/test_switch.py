"""Switch: the jitter, the router against a loop over tokens, its defaults."""

import numpy as np
import pytest
from implementations import holds
from strategies import seeds, spread

from moespec.spec import ROUTERS


@holds(wrong="jitter_added", tokens=spread, seed=seeds)
def test_jitter_is_a_factor_within_epsilon_of_one(B, tokens, seed):
    noise = np.random.default_rng(seed).uniform(-1, 1, tokens.shape)
    np.testing.assert_allclose(B.router_jitter(tokens, noise, epsilon=0.25), tokens * (1 + 0.25 * noise), rtol=1e-14)
    np.testing.assert_array_equal(B.router_jitter(tokens, noise, epsilon=0.0), tokens)
    np.testing.assert_array_equal(B.router_jitter(tokens, None), tokens)


@pytest.mark.parametrize("seed", range(5))
def test_against_a_loop_over_tokens(seed):
    random = np.random.default_rng(seed)
    tokens, kernel, noise = random.normal(size=(16, 4)), random.normal(size=(4, 5)), random.uniform(-1, 1, (16, 4))
    config = ROUTERS["switch"].options(width=4, experts=5, tokens=16)
    output = ROUTERS["switch"].route({"kernel": kernel}, tokens, config, noise=noise, train=True)
    capacity = int(np.ceil(1.25 * 16 / 5))
    filled, first, mean = np.zeros(5, int), np.zeros(5), np.zeros(5)
    combine = np.zeros((16, 5, capacity))
    for t in range(16):
        exponentials = np.exp((tokens[t] * (1 + 0.01 * noise[t])) @ kernel)
        gates = exponentials / exponentials.sum()
        e = int(gates.argmax())
        first[e] += 1 / 16
        mean += gates / 16
        if filled[e] < capacity:
            combine[t, e, filled[e]] = gates[e]
            filled[e] += 1
    np.testing.assert_allclose(output.routing.combine, combine, rtol=1e-13)
    assert output.losses["balance"] == pytest.approx(0.01 * 5 * np.dot(first, mean), rel=1e-12)


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
