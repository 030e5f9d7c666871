"""Which parameters decay, and how fast: the rule is the authors' one, and every backend keeps it."""

import importlib

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec import ROUTERS
from moespec.spec.errors import ConfigError

KERNELS = (
    "head/kernel",
    "blocks/0/attention/out/kernel",
    "blocks/1/moe/experts/w1",
    "blocks/1/mlp/w2",
    "router/kernel",
)
OTHER_KERNELS = ("rescale1/token_kernel", "rescale2/channel_kernel", "router/noise_kernel")
NOT = (
    "head/bias",
    "norm/scale",
    "blocks/0/norm1/scale",
    "positions",
    "token",
    "router/slots",
    "experts/b1",
    "head/probe",
)


def test_what_decays() -> None:
    """Kernels and the scale of Soft MoE decay, whose slots do not, as in the configurations of the authors."""
    optimizer = OptimizerConfig(weight_decay=0.25)
    for path in (*KERNELS, *OTHER_KERNELS, "blocks/1/moe/router/scale", "router/scale"):
        assert optimizer.decay_of(path.split("/")) == 0.25, path
    for path in (*NOT, "router/tables", "tokens/codebook"):
        assert optimizer.decay_of(path.split("/")) == 0.0, path
    assert optimizer.decay_of(()) == 0.0


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_says_what_decays_and_what_is_frozen(name: str) -> None:
    """By names of its parameters, which no other router means otherwise."""
    router, optimizer = ROUTERS[name], OptimizerConfig(weight_decay=0.25)
    params = router.init(np.random.default_rng(0), router.options(tokens=8, width=4, experts=4))
    assert params.keys() >= set(router.decays)
    for param in params:
        path = ("blocks", "1", "moe", "router", param)
        assert optimizer.decay_of(path) == 0.25 * (param in router.decays), path
        assert optimizer.rate_of(path) == (param not in router.frozen), path


def test_the_first_pattern_that_is_found_counts() -> None:
    optimizer = OptimizerConfig(weight_decay=0.5, decay="head/kernel=3.0, router/.*=0, kernel=0.25, slots=1")
    expected = {"head/kernel": 3.0, "router/kernel": 0.0, "router/slots": 0.0, "a/kernel": 0.25, "mlp/w1": 0.5}
    assert {path: optimizer.decay_of(path.split("/")) for path in expected} == expected
    # A constant never decays, whatever the pattern.
    assert OptimizerConfig(decay=".*=1").decay_of(("router", "tables")) == 0.0


@pytest.mark.parametrize(
    "decay",
    ["kernel", "kernel=", "=0.1", "(=0.1", "kernel=fast", "kernel=-1", "kernel=nan", "kernel=1e39", "a=1,", ","],
)
def test_decay_that_cannot_be_read_is_an_error(decay: str) -> None:
    with pytest.raises(ConfigError, match=r"^decay="):
        OptimizerConfig(decay=decay)


def test_a_pattern_that_no_parameter_has_is_an_error() -> None:
    optimizer = OptimizerConfig(decay="head/kernel=3.0, haed=1.0")
    with pytest.raises(ConfigError, match="'haed'"):
        optimizer.check_patterns([("head", "kernel"), ("head", "bias")])
    OptimizerConfig(decay="head/kernel=3.0").check_patterns([("head", "kernel")])


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_step_decays_each_parameter_at_its_rate(backend: str) -> None:
    """With a gradient of 0 a step is the decay alone: `p (1 - learning rate * rate)`."""
    pytest.importorskip(backend)
    B = importlib.import_module(f"moespec.backends.{backend}")
    params = {
        "head": {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)},
        "router": {"slots": np.ones((2, 1, 1), np.float32), "scale": np.ones((), np.float32)},
        "mlp": {"w1": np.ones((2, 2), np.float32)},
    }
    optimizer = OptimizerConfig(weight_decay=0.5, decay="head/kernel=2.0")
    step = B.make_step(
        lambda p, batch: (0.0 * sum(B.sum(v) for part in p.values() for v in part.values()), {}), optimizer
    )
    state, _ = step(B.init_state(B.from_numpy(params), optimizer), B.from_numpy(np.zeros((1, 1), np.float32)), 0.125)
    after = B.export_state(state)["params"]
    expected = {"head": {"kernel": 0.75, "bias": 1.0}, "router": {"slots": 1.0, "scale": 0.9375}, "mlp": {"w1": 0.9375}}
    for name, part in expected.items():
        for key, value in part.items():
            np.testing.assert_allclose(after[name][key], value, rtol=1e-6, err_msg=f"{name}/{key}")
