"""Invalid input that no case of the suite can have (its routings come from allocations) raises the specification's errors."""

import importlib
from functools import partial

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec import ConfigError, ShapeError

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

SCORES = np.full((2, 6, 3), 1 / 3, np.float32)
X = np.ones((2, 6, 4), np.float32)
SLOTS = np.ones((4, 3, 2), np.float32)


def test_moe_layer():
    routing = jax.eval_shape(partial(B.expert_choice, capacity=2), SCORES)
    soft = jax.eval_shape(B.soft_routing, X, SLOTS)
    for record in (routing, soft):
        layer = partial(jax.eval_shape, partial(B.moe_layer, experts=lambda x: x))
        assert layer(X, record).shape == X.shape
        with pytest.raises(ShapeError, match=r"tokens.*1 entries"):
            layer(X[:1], record)
        with pytest.raises(ShapeError, match="experts"):
            jax.eval_shape(partial(B.moe_layer, experts=lambda x: x[:, :1]), X, record)


def test_training():
    with pytest.raises(ConfigError, match=r"accumulate.*0"):
        B.make_step(None, OptimizerConfig(), accumulate=0)
    for options in ({"b1": 1.0}, {"b2": -0.1}, {"epsilon": 0.0}, {"weight_decay": -1.0}, {"clip": 0.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}.*{next(iter(options.values()))}"):
            OptimizerConfig(**options)
    step = B.make_step(lambda params, batch: (B.sum(params["w1"] * batch), {}), OptimizerConfig(), accumulate=2)
    with pytest.raises(ShapeError, match=r"batch.*3.*2 equal parts"):
        step(B.init_state({"w1": np.ones(2, np.float32)}, OptimizerConfig()), np.ones((3, 2), np.float32), 0.1)
