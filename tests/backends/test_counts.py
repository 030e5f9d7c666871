"""Counts beyond 2^24, from where on float32 lacks whole numbers: states move as the specification moves them."""

import importlib

import numpy as np
import pytest

from moespec import spec

BACKENDS = ("jax", "torch")


def of_step(experts, mean, spread, step=1):
    """Loads near their mean, whole numbers that float32 has."""
    loads = mean + step * np.random.default_rng(experts).integers(-spread, spread + 1, experts)
    assert np.all(loads == loads.astype(np.float32))
    return loads


def with_mean(loads, where, outlier):
    """The loads with one that is far off, and with one that is exactly the mean of all."""
    loads = np.append(loads, [0, 0])
    loads[where], total = outlier, loads[:-2].sum() - loads[where] + outlier
    loads[-2] = -total % (len(loads) - 1)
    loads[-1] = (total + loads[-2]) // (len(loads) - 1)
    return loads


LOADS = {
    "the sum passes 2^24": of_step(256, 131072, 3),
    "the largest sums": of_step(4096, 2**22, 100),
    "each load passes 2^24": of_step(256, 2**26, 30, step=8),
    "each load passes 2^30": of_step(8, 2**31, 2, step=256),
    "some pass 2^24, some do not": np.repeat([2**24 + 2, 2**24 - 1, 2**24 - 2, 2**24], 64),
    "one at the mean": with_mean(of_step(62, 3 * 2**20 + 1, 1000), 5, 2**25),
    "few": np.array([0, 3, 1, 2, 0, 1, 1, 0]),
    "halves": np.array([0.5, 1.25, 1.0, 1.25]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loads", LOADS)
def test_biases_move_as_in_the_specification(backend, loads):
    pytest.importorskip(backend)
    B, load = importlib.import_module(f"moespec.backends.{backend}"), LOADS[loads]
    bias = np.zeros(len(load), np.float32)
    want = spec.balance_bias(bias.astype(float), load.astype(float), rate=1.0)
    got = B.to_numpy(B.balance_bias(*B.from_numpy((bias, load.astype(np.float32))), rate=1.0))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gates_are_counted_one_by_one(backend):
    pytest.importorskip(backend)
    B = importlib.import_module(f"moespec.backends.{backend}")
    gates = np.ones((1, 2**20 + 1, 16), np.float32)
    gates[0, 5, 3] = 0
    assert float(B.excess_gates(B.from_numpy(gates), choices=16)) == -1
