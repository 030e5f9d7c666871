"""What routers keep from step to step: the same on every backend, for any number of parts, and in modules of other frameworks."""

import numpy as np
import pytest

from moespec.models import layers, vit
from moespec.spec import ROUTERS, ConfigError, ShapeError
from moespec.training.objectives.classification import make_loss

ROUTER, RATE = "sigmoid_token_choice", 0.25
OPTIONS = {"choices": 2, "bias_update_rate": RATE}
CONFIG = vit.VitConfig(
    **{"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 8, "depth": 2, "heads": 2, "hidden": 8},
    **{"moe": "every_2", "router": ROUTER, "experts": 4, "router_options": OPTIONS},
)
MOE = {"width": 8, "hidden": 4, "experts": 4, "tokens": 6, "router": ROUTER, **OPTIONS}
X = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)


def expected(kernel):
    """The bias after a step on all tokens of `X`, by the specification alone, one group after the other."""
    router = ROUTERS[ROUTER]
    options = router.options(width=8, experts=4, tokens=6, **OPTIONS)
    state, params = router.initial_state(options), {"kernel": np.asarray(kernel)}
    loads = [router.route(params, tokens, options, state=state, train=True).statistics["load"] for tokens in X]
    return router.update(options, state, {"load": sum(loads)})["bias"]


def batches(count):
    rng = np.random.default_rng(1)
    for _ in range(count):
        images, labels = rng.standard_normal((8, 8, 8, 1)), rng.integers(0, 3, 8)
        yield {"images": images.astype(np.float32), "targets": np.eye(3, dtype=np.float32)[labels]}


def biases(B, accumulate, steps, **how):
    """The bias of the model after each step."""
    optimizer = B.OptimizerConfig("adamw", weight_decay=0.1, ema=0.9)
    loss = make_loss(B, CONFIG, "softmax", recompute=accumulate > 1)
    state_update = layers.state_update(B, vit.moe_layers(CONFIG, 8))
    step = B.make_step(loss, optimizer, accumulate=accumulate, **state_update, **how)
    state, found = B.init_state(vit.init(CONFIG), optimizer), []
    for batch in batches(steps):
        state, _ = step(state, B.from_numpy(batch), 0.01)
        found.append(B.export_state(state)["params"]["blocks"]["1"]["moe"]["router"]["state"]["bias"])
    return found


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_state_is_the_same_on_every_backend_and_of_any_number_of_parts(backend):
    """Of the NumPy backend once, since its gradients take seconds; the specification alone makes the first step again."""
    B = pytest.importorskip(f"moespec.backends.{backend}")
    how = {"compiled": False} if backend == "torch" else {}
    whole, parts = biases(B, 1, 3, **how), biases(B, 4, 3, **how)
    assert np.abs(whole[0]).max() == RATE
    assert not np.array_equal(whole[1], whole[0])
    np.testing.assert_array_equal(whole, parts)
    reference = pytest.importorskip("moespec.backends.numpy")
    np.testing.assert_array_equal(biases(reference, 2, 1), whole[:1])


def test_a_module_of_torch_counts_each_forward_pass_of_a_step_once():
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("moespec.backends.torch.nn")
    moe, x = nn.MoE(**MOE), torch.from_numpy(X)
    for part in (x[:1], x[1:]):
        torch.utils.checkpoint.checkpoint(moe, part, use_reentrant=False).sum().backward()
    moe.eval()(x)
    nn.update_states(torch.nn.Sequential(moe))
    bias = moe.router.state.bias
    np.testing.assert_array_equal(bias.numpy(), want := expected(moe.router.kernel.detach()))
    nn.update_states(moe)  # no forward pass since
    np.testing.assert_array_equal(bias.numpy(), want)
    moe.reset_parameters()
    assert not moe.router.state.bias.any()


def test_a_whole_model_of_torch_needs_its_layers():
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("moespec.backends.torch.nn")
    images = torch.from_numpy(next(batches(1))["images"])
    model = nn.Model(vit.forward, CONFIG, vit.init(CONFIG), layers=vit.moe_layers)
    model(images)
    nn.update_states(model)
    assert model.get_submodule("blocks.1.moe.router.state").bias.abs().max() == RATE
    with pytest.raises(ConfigError, match="layers: expected the MoE layers, because their routers have a state"):
        nn.Model(vit.forward, CONFIG, vit.init(CONFIG))(images)


def test_a_module_of_flax():
    nnx, ours = pytest.importorskip("flax.nnx"), pytest.importorskip("moespec.backends.jax.nnx")

    class Twice(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([ours.MoE(**MOE)])

        def __call__(self, x):
            return self.layers[0](x[:1]), self.layers[0](x[1:])

    model = Twice()
    moe = model.layers[0]
    _, statistics = nnx.capture(model, ours.RoutingStatistic)(X)
    ours.update_states(model, statistics)
    np.testing.assert_array_equal(moe.state["bias"][...], expected(moe.router["kernel"][...]))
    assert type(moe.state["bias"]) is ours.RouterState


def test_a_module_of_equinox():
    equinox = pytest.importorskip("moespec.backends.jax.equinox")
    moe = equinox.MoE(**MOE)
    state = moe.initial_state()
    found = moe(X, state=state)
    bias = moe.update(state, found.statistics)["bias"]
    np.testing.assert_array_equal(bias, expected(moe.router["kernel"]))
    with pytest.raises(ConfigError, match="state: sigmoid_token_choice expects"):
        moe(X)


@pytest.mark.parametrize(
    ("router", "state", "error", "message"),
    [
        (ROUTER, None, ConfigError, r"state: sigmoid_token_choice expects \['bias'\], as from .*, got \[\]"),
        (ROUTER, {"bias": np.zeros(3)}, ShapeError, r"state.bias: expected shape \(4,\), got \(3,\)"),
        (ROUTER, {"bais": np.zeros(4)}, ConfigError, r"got \['bais'\]"),
        ("switch", {"bias": np.zeros(4)}, ConfigError, r"state: switch expects no state, got \['bias'\]"),
    ],
)
def test_a_state_that_is_not_the_router_s(router, state, error, message):
    of = ROUTERS[router]
    options, params = of.options(width=8, experts=4, tokens=6), {"kernel": np.zeros((8, 4))}
    for call in (of.route, of.update):
        given = (params, X[0], options) if call == of.route else (options,)
        with pytest.raises(error, match=message):
            call(*given, state=state, **({} if call == of.route else {"statistics": {}}))
