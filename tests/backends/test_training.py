"""The training step of every backend: a zero gradient, accumulation, exact states that own their arrays, one compilation."""

import importlib
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec import ConfigError, ShapeError

jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
OPTIMIZER = OptimizerConfig(weight_decay=0.1, clip=1.0)
RATES = (0.1, 0.05, 0.2)


@pytest.fixture(params=["numpy", "jax", "torch"])
def B(request):
    """A backend, in float64."""
    with jax.enable_x64(True) if request.param == "jax" else nullcontext():
        yield importlib.import_module(f"moespec.backends.{request.param}")


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def parameters():
    return {"layer": {"kernel": draw(4, 3), "bias": draw(3)}, "scale": draw()}


BATCH = {"x": draw(6, 4), "y": draw(6, 3, seed=1), "noise": None}


def loss_of(B):
    def loss(params, batch):
        """Mean over the batch of a squared error."""
        error = batch["x"] @ params["layer"]["kernel"] * params["scale"] + params["layer"]["bias"] - batch["y"]
        value = B.mean(B.sum(error * error, 1), 0)
        return value, {"half": value / 2}

    return loss


def step_of(B, optimizer=OPTIMIZER, **options):
    """The step; that of torch op by op."""
    return B.make_step(loss_of(B), optimizer, **options, **({"compiled": False} if B.name == "torch" else {}))


def begin(B, optimizer=OPTIMIZER):
    return B.init_state(B.from_numpy(parameters(), "float64"), optimizer)


def run(B, step, state, rates=RATES):
    """The state and the metrics after a step for each rate."""
    for rate in rates:
        state, metrics = step(state, B.from_numpy(BATCH, "float64"), rate)
    return state, B.to_numpy(metrics)


def assert_same(got, want, tolerance=0.0):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_zero_gradient_changes_nothing_but_decay(B):
    optimizer = OptimizerConfig(clip=1.0, weight_decay=0.5)
    options = {"compiled": False} if B.name == "torch" else {}
    step = B.make_step(lambda params, batch: (B.sum(params["b1"]) * 0 + B.sum(batch), {}), optimizer, **options)
    state = B.init_state(B.from_numpy({"w1": np.ones(2), "b1": np.ones(2)}, "float64"), optimizer)
    state, metrics = step(state, B.from_numpy(np.ones(2), "float64"), 0.1)
    assert B.to_numpy(metrics["grad_norm"]) == 0
    assert_same(B.export_state(state)["params"], {"w1": np.full(2, 0.95), "b1": np.ones(2)}, 1e-15)


def test_accumulation_is_the_same_step(B):
    """And what a batch cannot be split in is an error."""
    results = [run(B, step_of(B, accumulate=parts), begin(B)) for parts in (1, 2, 3)]
    for (state, metrics), (other, same) in pairwise(results):
        assert_same(B.export_state(other), B.export_state(state), 1e-11)
        assert_same(same, metrics, 1e-11)
    with pytest.raises(ConfigError, match=r"accumulate.*0"):
        step_of(B, accumulate=0)
    with pytest.raises(ShapeError, match=r"batch.*6.*4|accumulate=4"):
        run(B, step_of(B, accumulate=4), begin(B))


def test_an_exported_state_continues_to_the_same_bits(B):
    """Neither the parameters that it was made of nor what is exported changes with a step."""
    start, step = B.from_numpy(parameters(), "float64"), step_of(B)
    state, _ = run(B, step, B.init_state(start, OPTIMIZER))
    exported = B.export_state(state)
    copies = jax.tree.map(np.copy, exported)
    assert set(exported) == {"params", "mu", "nu", "step"}
    assert exported["step"] == 3
    resumed, _ = run(B, step, B.import_state(exported, OPTIMIZER), (0.1, 0.1))
    state, _ = run(B, step, state, (0.1, 0.1))
    assert_same(B.export_state(resumed), B.export_state(state))
    assert_same(exported, copies)
    assert_same(B.to_numpy(start), parameters())


def test_one_compilation_by_jax_and_a_donated_state():
    B, compilations = importlib.import_module("moespec.backends.jax"), []

    def counted(params, batch):
        compilations.append(1)
        return loss_of(B)(params, batch)

    step = B.make_step(counted, OPTIMIZER)
    first = state = B.init_state(B.from_numpy(parameters()), OPTIMIZER)
    for rate in (0.1, 0.2, np.float64(0.3), 0):
        state, metrics = step(state, B.from_numpy(BATCH), rate)
    assert len(compilations) == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    assert set(metrics) == {"loss", "grad_norm", "half"}


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_nothing_of_jax_lies_in_the_memory_of_numpy(size):
    """Arrays that happen to lie well would be taken as they are: changed later, or written over by a step."""
    B, optimizer = importlib.import_module("moespec.backends.jax"), OptimizerConfig()
    for _ in range(20):
        source = np.ones(size, np.float32)
        exported = {"params": {"a": source}, "mu": {"a": source}, "nu": {"a": source}, "step": 0}
        states = B.init_state({"a": source}, optimizer), B.import_state(exported, optimizer)
        for array in (B.from_numpy(source), *(B.state_params(state)["a"] for state in states)):
            assert array.unsafe_buffer_pointer() != source.ctypes.data


def test_one_compilation_by_torch(monkeypatch):
    """Neither another learning rate nor a part of the batch compiles anything anew, and the numbers are the same."""
    B = importlib.import_module("moespec.backends.torch")
    compile_, graphs = torch.compile, []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn, **options: compile_(fn, **{**options, "backend": counting}))
    state, metrics = run(B, B.make_step(loss_of(B), OPTIMIZER, accumulate=2), begin(B))
    assert len(graphs) == 1
    eager, expected = run(B, step_of(B, accumulate=2), begin(B))
    assert_same((B.export_state(state), metrics), (B.export_state(eager), expected), 1e-12)
    torch._dynamo.reset()


def test_a_state_of_torch_is_changed_in_place():
    """Parameters for a forward pass are those of the state, without a gradient."""
    B = importlib.import_module("moespec.backends.torch")
    state = begin(B)
    live = B.state_params(state)["layer"]["kernel"]
    before = live.clone()
    assert not live.requires_grad
    assert run(B, step_of(B), state)[0] is state
    assert not torch.equal(live, before)
