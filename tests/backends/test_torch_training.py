"""Training with torch: the optimiser equals the reference to rounding, and its state moves in and out bit for bit."""

import importlib
import math

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec import ConfigError, ShapeError

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
reference = importlib.import_module("moespec.backends.numpy")

CONFIG = B.ROUTERS["softmax_expert_choice"].options(width=3, experts=2, tokens=4, z_weight=0.01)
OPTIMIZER = OptimizerConfig(weight_decay=0.1, clip=0.8, b2=0.99)


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def parameters():
    return {
        "router": {"kernel": draw(3, 2)},
        "experts": {"w1": draw(2, 3, 2), "b1": draw(2, 2), "w2": draw(2, 2, 3), "b2": draw(2, 3)},
        "norm": {"scale": np.ones(3)},
    }


BATCH = {"x": draw(4, 4, 3, seed=1), "y": draw(4, 4, 3, seed=2), "noise": [draw(4, 4, 2, seed=3)]}


def loss_with(backend):
    def loss(params, batch):
        x = backend.layer_norm(batch["x"], params["norm"]["scale"])
        output = backend.ROUTERS["softmax_expert_choice"].route(params["router"], x, CONFIG, noise=batch["noise"][0])
        y = backend.moe_layer(x, output.routing, lambda inputs: backend.expert_mlp(inputs, params["experts"]))
        error = y - batch["y"]
        return backend.mean(error * error, (0, 1, 2)) + output.losses["z"], {"load": output.metrics["load"]}

    return loss


def run(backend, steps, *, state=None, first=0, **options):
    """The state and the metrics after some steps, each with its own learning rate."""
    step = backend.make_step(loss_with(backend), OPTIMIZER, **options)
    state = backend.init_state(parameters(), OPTIMIZER) if state is None else state
    reported = []
    for index in range(first, first + steps):
        state, metrics = step(state, backend.from_numpy(BATCH), 0.1 / (1 + index))
        reported.append(backend.to_numpy(metrics))
    return state, reported


def assert_same(got, want, tolerance):
    if isinstance(want, dict):
        assert list(got) == list(want)
        for name in want:
            assert_same(got[name], want[name], tolerance)
    else:
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_equal_the_reference(accumulate):
    """Parameters, moments and metrics after six steps; the gradient is clipped in some of them."""
    state, got = run(B, 6, accumulate=accumulate, compiled=False)
    wanted_state, wanted = run(reference, 6, accumulate=accumulate)
    norms = [metrics["grad_norm"] for metrics in wanted]
    assert min(norms) < OPTIMIZER.clip < max(norms)
    for metrics, want in zip(got, wanted, strict=True):
        assert set(metrics) == {"load", "loss", "grad_norm"}
        for name in metrics:
            np.testing.assert_allclose(metrics[name], want[name], rtol=1e-11)
    assert_same(B.export_state(state), reference.export_state(wanted_state), 1e-11)


def test_the_clip_is_exact():
    """A gradient is multiplied by min(1, clip / norm), with nothing added to the norm."""
    optimizer = OptimizerConfig(b1=0.0, b2=0.0, clip=1e-12)
    step = B.make_step(lambda params, batch: ((params["w1"] * batch).sum(), {}), optimizer, compiled=False)
    state = B.init_state({"w1": np.zeros(2)}, optimizer)
    state, metrics = step(state, B.from_numpy(np.array([3.0, 4.0])), 1.0)
    assert metrics["grad_norm"].item() == 5.0
    np.testing.assert_allclose(B.export_state(state)["mu"]["w1"], [0.6e-12, 0.8e-12], rtol=1e-12)


def test_a_zero_gradient_changes_nothing_but_decay():
    optimizer = OptimizerConfig(clip=1.0, weight_decay=0.5)
    step = B.make_step(lambda params, batch: (params["b1"].sum() * 0 + batch.sum(), {}), optimizer, compiled=False)
    state = B.init_state({"w1": np.ones(2), "b1": np.ones(2)}, optimizer)
    state, metrics = step(state, B.from_numpy(np.ones(2)), 0.1)
    assert metrics["grad_norm"].item() == 0
    assert_same(B.export_state(state)["params"], {"w1": np.full(2, 0.95), "b1": np.ones(2)}, 1e-15)


def test_state_moves_bit_for_bit():
    """Stopped after two steps, exported, imported and continued: the same bits as without a stop."""
    unbroken, _ = run(B, 5, compiled=False)
    stopped, _ = run(B, 2, compiled=False)
    exported = B.export_state(stopped)
    assert exported["step"] == 2
    assert isinstance(exported["step"], int)
    imported = B.import_state(exported, OPTIMIZER)
    assert_same(B.export_state(imported), exported, 0)
    resumed, _ = run(B, 3, state=imported, first=2, compiled=False)
    assert_same(B.export_state(resumed), B.export_state(unbroken), 0)
    fresh = B.export_state(B.init_state(parameters(), OPTIMIZER))
    assert fresh["step"] == 0
    assert not np.any(fresh["mu"]["experts"]["w1"])


def test_a_state_of_the_reference_continues_here():
    state, _ = run(reference, 3)
    resumed, _ = run(B, 2, state=B.import_state(reference.export_state(state), OPTIMIZER), first=3, compiled=False)
    assert_same(B.export_state(resumed), reference.export_state(run(reference, 5)[0]), 1e-11)


def test_the_state_owns_its_arrays():
    """Neither the parameters given nor those exported change with a step; those for a forward pass do."""
    given = parameters()
    state = B.init_state(given, OPTIMIZER)
    exported, live = B.export_state(state), B.state_params(state)
    before = live["router"]["kernel"].clone()
    assert not live["router"]["kernel"].requires_grad
    step = B.make_step(loss_with(B), OPTIMIZER, compiled=False)
    returned, _ = step(state, B.from_numpy(BATCH), 0.1)
    assert returned is state
    assert_same(given, parameters(), 0)
    assert_same(exported["params"], parameters(), 0)
    assert not torch.equal(live["router"]["kernel"], before)


def test_compiled_once(monkeypatch):
    """Neither another learning rate nor a part of the batch compiles anything anew, and the numbers are the same."""
    compile_, traces = torch.compile, []

    def counting(graph, inputs):
        traces.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn, **options: compile_(fn, **{**options, "backend": counting}))
    state, metrics = run(B, 4, accumulate=2)
    assert len(traces) == 1
    eager, wanted = run(B, 4, accumulate=2, compiled=False)
    assert_same(B.export_state(state), B.export_state(eager), 1e-12)
    assert math.isclose(metrics[-1]["loss"], wanted[-1]["loss"], rel_tol=1e-12)
    torch._dynamo.reset()


def test_bad_arguments():
    with pytest.raises(ConfigError, match=r"^accumulate:"):
        B.make_step(loss_with(B), OPTIMIZER, accumulate=0)
    with pytest.raises(ShapeError, match=r"^batch: 4 examples do not split into accumulate=3"):
        run(B, 1, accumulate=3, compiled=False)


def test_arrays_move_both_ways():
    tree = {"a": [np.ones((2,), np.float32), None], "b": (np.arange(3), np.float64(2.5)), "c": np.array([True])}
    tensors = B.from_numpy(tree, "bfloat16")
    assert [tensors["a"][0].dtype, tensors["b"][0].dtype, tensors["b"][1].dtype] == [
        torch.bfloat16,
        torch.int64,
        torch.bfloat16,
    ]
    assert tensors["a"][0].device.type == B.default_device().type
    back = B.to_numpy(tensors)
    assert back["a"][0].dtype == np.float32
    assert back["a"][1] is None
    assert back["c"].dtype == bool
    assert back["b"][1] == 2.5
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)  # between two bfloat16 numbers: to the even one
    assert B.to_numpy(B.from_numpy(halfway, "bfloat16")).tolist() == [1.0, 1 + 2**-6]
    routing = B.to_numpy(B.token_choice(torch.rand(1, 4, 2), choices=1, capacity=2))
    assert routing.token.dtype == np.int32
    assert routing.tokens == 4
