"""Counts beyond 2^24, from where on float32 lacks whole numbers: states move as the specification moves them."""

import importlib

import numpy as np
import pytest

from moespec import spec


def near(experts, mean, spread, step=1):
    """Loads near their mean, multiples of `step`."""
    return mean + step * np.random.default_rng(experts).integers(-spread, spread + 1, experts)


LOADS = {
    "the sum passes 2^24": near(256, 131072, 3),
    "many experts": near(4096, 2**22, 100),
    "each passes 2^24": near(256, 2**27, 30, step=16),
    "some pass 2^24": np.repeat([2**24 + 2, 2**24 - 1, 2**24 - 2, 2**24 + 4, 2**24], [64, 65, 64, 1, 62]),
    "one is far off": np.append(near(62, 3 * 2**20 + 1, 1000), [2**25, 0]),
    "fractions": np.array([0.5, 1.25, 1.0, 1.25]),
}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_states_move_as_in_the_specification(backend):
    pytest.importorskip(backend)
    B = importlib.import_module(f"moespec.backends.{backend}")
    for name, load in LOADS.items():
        bias, exact = np.zeros(len(load), np.float32), load.astype(np.float32)
        np.testing.assert_array_equal(exact, load)
        got = B.to_numpy(B.balance_bias(*B.from_numpy((bias, exact)), rate=1.0))
        np.testing.assert_array_equal(got, spec.balance_bias(0.0 * load, 1.0 * load, rate=1.0), err_msg=name)
    gates = np.ones((1, 2**20 + 1, 16), np.float32)
    gates[0, 5, 3] = 0
    assert float(B.excess_gates(B.from_numpy(gates), choices=16)) == -1
