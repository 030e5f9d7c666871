"""Every router of every backend has the capacity of training in training, and that of evaluation at evaluation."""

import importlib

import numpy as np
import pytest
import router_inputs

from moespec import spec
from moespec.spec.options import CapacityOptions

GROUPS, TOKENS, EXPERTS, WIDTH = 2, 12, 4, 5


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "name", [name for name, router in spec.ROUTERS.items() if issubclass(router.Options, CapacityOptions)]
)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_equals_the_specification(backend, name, train):
    B = importlib.import_module(f"moespec.backends.{backend}")
    sizes = {"width": WIDTH, "experts": EXPERTS, "tokens": TOKENS}
    config = router_inputs.options(name, **sizes, capacity_factor=0.5, eval_capacity_factor=1.0)
    rng = np.random.default_rng(0)
    params = {key: np.asarray(value) for key, value in spec.ROUTERS[name].init(rng, config).items()}
    tokens = rng.standard_normal((GROUPS, TOKENS, WIDTH)).astype(np.float32)
    arrays = B.from_numpy((params, tokens), "float64" if backend == "numpy" else "float32")
    routing = B.ROUTERS[name].route(*arrays, config, train=train).routing
    dispatch = np.asarray(B.to_numpy(routing.dense().dispatch))
    for group in range(GROUPS):
        want = spec.ROUTERS[name].route(params, tokens[group], config, train=train).routing.dispatch
        np.testing.assert_array_equal(dispatch[group], want)
