"""Normal numbers of the compiled backends, op by op and compiled, and a rate that is rounded. The bits of words, vectors have."""

import importlib

import numpy as np
import pytest

from moespec import spec


@pytest.fixture(params=["jax", "torch"])
def B(request):
    pytest.importorskip(request.param)
    return importlib.import_module(f"moespec.backends.{request.param}")


def test_normal_numbers_are_within_their_bound(B):
    """`4 u r (1 + |a|)`, to the last of the draws: the largest radius, and a radius of 0."""
    draws = spec.unit_interval(spec.random_words([4, 0, 0, 0], stream=0, rows=20_000, columns=2))
    edges = [[1 - 2.0**-24, 0.0], [1 - 2.0**-24, 0.75], [0.0, 0.5], [2.0**-24, 0.25], [0.5, 1 - 2.0**-24]]
    uniform = np.concatenate([draws, edges])
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:, :1])), np.pi * (2 * uniform[:, 1:] - 1)
    bound = 4 * 2.0**-24 * radius * (1 + np.abs(angle)) + np.finfo(np.float32).tiny
    for function in (B.box_muller, B.quick_compile(B.box_muller)):
        normal = B.to_numpy(function(B.from_numpy(uniform.astype(np.float32))))
        assert normal.dtype == np.float32
        assert np.isfinite(normal).all()
        assert (np.abs(normal - spec.box_muller(uniform)) <= bound).all()


def test_a_rate_that_float32_rounds_down_keeps_the_same_entries(B):
    above = np.ceil(0.7 * 2**24) / 2**24
    draws = B.from_numpy(np.array([above - 2**-24, above], np.float32))
    assert B.to_numpy(B.dropout(B.from_numpy(np.ones(2, np.float32)), draws, rate=0.7)).nonzero()[0].tolist() == [1]
