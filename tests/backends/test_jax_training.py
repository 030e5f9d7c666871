"""The training step of the JAX backend: AdamW by hand, exact state, accumulation, one compilation."""

import importlib
from functools import partial

import numpy as np
import pytest

from moespec import spec
from moespec.backends.optimizer import OptimizerConfig

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

RATES = (0.1, 0.05, 0.2)


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


PARAMS = {"layer": {"kernel": draw(4, 3), "bias": draw(3)}, "scale": draw()}
BATCH = {"x": draw(6, 4), "y": draw(6, 3, seed=1), "noise": None}


def loss_fn(params, batch):
    """Mean over the batch of a squared error."""
    error = batch["x"] @ params["layer"]["kernel"] * params["scale"] + params["layer"]["bias"] - batch["y"]
    loss = B.mean(B.sum(error * error, 1), 0)
    return loss, {"half": loss / 2}


def by_hand(params, batch, optimizer, rates):
    """AdamW in NumPy, from its definition."""
    params = {"kernel": params["layer"]["kernel"], "bias": params["layer"]["bias"], "scale": params["scale"]}
    params = {name: value.astype(np.float64) for name, value in params.items()}
    mu = {name: np.zeros_like(value) for name, value in params.items()}
    nu = {name: np.zeros_like(value) for name, value in params.items()}
    norms = []
    for n, rate in enumerate(rates, start=1):
        projected = batch["x"] @ params["kernel"]
        error = 2 * (projected * params["scale"] + params["bias"] - batch["y"]) / len(batch["x"])
        gradients = {
            "kernel": batch["x"].T @ error * params["scale"],
            "bias": error.sum(axis=0),
            "scale": (error * projected).sum(),
        }
        norms.append(np.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values())))
        for name, gradient in gradients.items():
            if optimizer.clip is not None:
                gradient = gradient * min(1.0, optimizer.clip / norms[-1])
            mu[name] = optimizer.b1 * mu[name] + (1 - optimizer.b1) * gradient
            nu[name] = optimizer.b2 * nu[name] + (1 - optimizer.b2) * gradient**2
            mean, square = mu[name] / (1 - optimizer.b1**n), nu[name] / (1 - optimizer.b2**n)
            decay = optimizer.weight_decay * params[name] if name == "kernel" else 0.0
            params[name] = params[name] - rate * (mean / (np.sqrt(square) + optimizer.epsilon) + decay)
    return params, norms


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerConfig(),
        OptimizerConfig(b1=0.8, b2=0.95, epsilon=1e-3, weight_decay=0.3),
        OptimizerConfig(clip=0.5, weight_decay=0.1),
        OptimizerConfig(clip=1e9),
    ],
)
def test_steps_are_adamw(optimizer):
    want, norms = by_hand(PARAMS, BATCH, optimizer, RATES)
    with jax.enable_x64(True):
        state = B.init_state(B.from_numpy(PARAMS, "float64"), optimizer)
        step = B.make_step(loss_fn, optimizer)
        for rate, norm in zip(RATES, norms, strict=True):
            state, metrics = step(state, B.from_numpy(BATCH, "float64"), rate)
            np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-13)
            np.testing.assert_allclose(metrics["loss"], 2 * metrics["half"], rtol=1e-15)
        params = B.to_numpy(B.state_params(state))
    np.testing.assert_allclose(params["layer"]["kernel"], want["kernel"], rtol=1e-12)
    np.testing.assert_allclose(params["layer"]["bias"], want["bias"], rtol=1e-12)
    np.testing.assert_allclose(params["scale"], want["scale"], rtol=1e-12)


def test_accumulation_is_the_same_step():
    optimizer = OptimizerConfig(weight_decay=0.1, clip=1.0)
    results = []
    for accumulate in (1, 3):
        state = B.init_state(PARAMS, optimizer)
        step = B.make_step(loss_fn, optimizer, accumulate=accumulate)
        for rate in RATES:
            state, metrics = step(state, BATCH, rate)
        results.append((B.export_state(state), B.to_numpy(metrics)))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_one_compilation_and_donated_state():
    compilations = 0

    def counted(params, batch):
        nonlocal compilations
        compilations += 1
        return loss_fn(params, batch)

    optimizer = OptimizerConfig()
    step = B.make_step(counted, optimizer)
    first = state = B.init_state(PARAMS, optimizer)
    for rate in (0.1, 0.2, np.float64(0.3), 0):
        state, metrics = step(state, BATCH, rate)
    assert compilations == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    assert set(metrics) == {"loss", "grad_norm", "half"}


def test_exported_state_continues_to_the_same_bits():
    optimizer = OptimizerConfig(weight_decay=0.1, clip=1.0)
    step = B.make_step(loss_fn, optimizer)
    state = B.init_state(PARAMS, optimizer)
    for rate in RATES:
        state, _ = step(state, BATCH, rate)
    exported = B.export_state(state)
    assert set(exported) == {"params", "mu", "nu", "step"}
    assert exported["step"] == 3
    kept = jax.tree.map(np.copy, exported)
    resumed = B.import_state(exported, optimizer)
    for _ in range(2):
        state, _ = step(state, BATCH, 0.1)
        resumed, _ = step(resumed, BATCH, 0.1)
    for one, other in zip(*(jax.tree.leaves(B.export_state(s)) for s in (state, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)
    # What was exported is a copy, which no later step changes.
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(exported), strict=True):
        np.testing.assert_array_equal(one, other)


def test_initial_parameters_are_copied():
    params = jax.tree.map(np.copy, PARAMS)
    state = B.init_state(params, OptimizerConfig())
    state, _ = B.make_step(loss_fn, OptimizerConfig())(state, BATCH, 0.1)
    np.testing.assert_array_equal(params["layer"]["kernel"], PARAMS["layer"]["kernel"])


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_nothing_lies_in_the_memory_of_numpy(size):
    """Arrays that happen to lie well would be taken as they are: changed later, or written over by a step."""
    optimizer = OptimizerConfig()
    for _ in range(20):
        given = np.ones(size, np.float32)
        exported = {"params": {"a": given}, "mu": {"a": given}, "nu": {"a": given}, "step": 0}
        states = B.init_state({"a": given}, optimizer), B.import_state(exported, optimizer)
        for array in (B.from_numpy(given), *(B.state_params(state)["a"] for state in states)):
            assert array.unsafe_buffer_pointer() != given.ctypes.data


def test_a_layer_learns():
    """A MoE layer with noise and losses trains: the loss falls, the metrics of the router come out."""
    width, experts, tokens = 6, 3, 8
    router = B.ROUTERS["softmax_token_choice"]
    config = router.options(width=width, experts=experts, tokens=tokens, choices=2, capacity_factor=1.5)
    params = {
        "router": router.init(np.random.default_rng(0), config),
        "experts": {
            "w1": draw(experts, width, 8),
            "b1": np.zeros((experts, 8), np.float32),
            "w2": draw(experts, 8, width),
            "b2": np.zeros((experts, width), np.float32),
        },
    }
    batch = {"x": draw(4, tokens, width), "noise": draw(4, tokens, experts), "y": draw(4, tokens, width, seed=1)}

    def loss_fn(params, batch):
        out = router.route(params["router"], batch["x"], config, noise=batch["noise"], train=True)
        y = B.moe_layer(batch["x"], out.routing, partial(B.expert_mlp, params=params["experts"]))
        assert set(out.losses) == {"importance", "load"}
        return B.mean((y - batch["y"]) ** 2, (0, 1, 2)) + sum(out.losses.values()), out.metrics

    step = B.make_step(loss_fn, OptimizerConfig(), accumulate=2)
    state = B.init_state(params, OptimizerConfig())
    losses = []
    for _ in range(30):
        state, metrics = step(state, batch, 0.01)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.7 * losses[0]
    assert {"load", "coverage", "dropped", "entropy", "importance_loss", "load_loss"} < set(metrics)
    assert metrics["load"].shape == (experts,)
    assert set(spec.routing_metrics(spec.expert_choice(np.eye(3), capacity=1))) < set(metrics)
