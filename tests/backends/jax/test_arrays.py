"""What the conformance suite does not check of the JAX backend: dtypes and promotion."""

import importlib
from functools import partial

import numpy as np
import pytest
import router_inputs

from moespec import spec

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 3, 12, 5, 6, 7


def draw(*shape):
    """Normal draws that float32 represents exactly, so that both sides see the same numbers."""
    return np.random.default_rng((0, *shape)).normal(size=shape).astype(np.float32).astype(np.float64)


X = draw(GROUPS, TOKENS, WIDTH)
MLP = router_inputs.perceptrons(draw, EXPERTS, WIDTH, HIDDEN)


@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_float32_where_float64_is_allowed(name):
    """What sums integers, for one, must not become wider than what it is compared with."""
    config = router_inputs.options(name, width=WIDTH, experts=4, tokens=TOKENS)
    rng = np.random.default_rng(0)
    params, noise = B.ROUTERS[name].init(rng, config), router_inputs.noise(rng, name, config, GROUPS)

    def layer(params, x, noise):
        return (
            B.ROUTERS[name]
            .route(params, x, config, state=spec.ROUTERS[name].initial_state(config), noise=noise, train=True)
            .routing
        )

    narrow = jax.jit(layer)(params, X.astype(np.float32), noise)
    with jax.enable_x64(True):
        routing = jax.jit(layer)(params, X.astype(np.float32), noise)
    for got, want in zip(jax.tree.leaves(routing), jax.tree.leaves(narrow), strict=True):
        assert got.dtype == want.dtype or got.dtype.kind == "i"
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_layer_traces_under_strict_promotion(name):
    """Of tokens in bfloat16 the routing is in float32, and the output is in bfloat16."""
    config = router_inputs.options(name, width=WIDTH, experts=EXPERTS, tokens=TOKENS, balance_weight=0.1)
    rng = np.random.default_rng(0)
    params = B.from_numpy(B.ROUTERS[name].init(rng, config))
    noise = router_inputs.noise(rng, name, config, GROUPS)

    def layer(x, noise, experts):
        out = B.ROUTERS[name].route(params, x, config, state=spec.ROUTERS[name].initial_state(config), noise=noise)
        assert {leaf.dtype for leaf in jax.tree.leaves(out.routing)} <= {np.dtype("float32"), np.dtype("int32")}
        return B.moe_layer(x, out.routing, partial(B.expert_mlp, params=experts))

    with jax.numpy_dtype_promotion("strict"):
        y = jax.eval_shape(layer, B.from_numpy(X, "bfloat16"), noise, B.from_numpy(MLP, "float32"))
    assert y.dtype == "bfloat16"
