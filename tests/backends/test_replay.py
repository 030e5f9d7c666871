"""Replay in the layers: a recorded run of a torch block gives the same outputs on torch, Flax and Equinox."""

import numpy as np
import pytest

from moespec.conformance.record import read, recording
from moespec.spec import ConfigError, DtypeError, ShapeError

pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")
torch = pytest.importorskip("torch")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from moespec.backends.jax import equinox as eqx  # noqa: E402
from moespec.backends.jax import nnx as flax  # noqa: E402
from moespec.backends.torch.nn import MoE  # noqa: E402

IMAGES, T, D, E, K = 2, 8, 4, 6, 2
ARGUMENTS = {"width": D, "hidden": 3, "experts": E, "tokens": T, "router": "softmax_token_choice", "choices": K}
ARGUMENTS |= {"normalize_selected": True, "slots_per_expert": T, "noise_multiplier": 0.0, "importance_weight": 0.0}
X = np.random.default_rng(0).normal(size=(IMAGES, T, D)).astype(np.float32)


class Engine(torch.nn.Module):
    """A block whose gate, unlike the layer's, chooses in low precision."""

    def __init__(self, layer):
        super().__init__()
        self.gate, self.experts = torch.nn.Linear(D, E, bias=False), layer.experts
        self.gate.weight = torch.nn.Parameter(layer.router.kernel.detach().T.contiguous())
        self.gate.register_forward_hook(lambda module, inputs, output: self._choose(output))

    def _choose(self, logits):
        choices = torch.topk((8 * logits).round(), K).indices
        weights = torch.softmax(logits, -1).gather(-1, choices)
        return logits, weights / weights.sum(-1, keepdim=True), choices

    def forward(self, x):
        _, weights, choices = self.gate(x)
        outputs = torch.stack([self._expert(x, e) for e in range(E)], dim=-2)
        picked = outputs.gather(-2, choices[..., None].expand(*choices.shape, D))
        return (weights[..., None] * picked).sum(-2)

    def _expert(self, x, e):
        fc1, fc2 = self.experts.fc1, self.experts.fc2
        inner = torch.nn.functional.gelu(x @ fc1.weight[e] + fc1.bias[e], approximate="tanh")
        return inner @ fc2.weight[e] + fc2.bias[e]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The layer, the engine's output, and its recorded choices."""
    layer, path = MoE(**ARGUMENTS), tmp_path_factory.mktemp("replay") / "engine.safetensors"
    engine = Engine(layer)
    with recording(path, engine, "gate"), torch.no_grad():
        expected = engine(torch.as_tensor(X))
    (gate,) = read(path)
    return layer, expected.numpy(), gate.choices.reshape(IMAGES, T, K)


def test_a_recorded_run_gives_the_same_outputs_everywhere(run):
    layer, expected, choices = run
    live = layer.eval()(torch.as_tensor(X)).detach().numpy()
    assert np.abs(live - expected).max() > 0.01
    y = layer(torch.as_tensor(X), choices=torch.as_tensor(choices))
    np.testing.assert_allclose(y.detach().numpy(), expected, atol=1e-6)
    for module in (flax.MoE(**ARGUMENTS, deterministic=True), eqx.MoE(**ARGUMENTS, inference=True)):
        y = jax.jit(lambda x, c, module=module: module(x, choices=c))(jnp.asarray(X), jnp.asarray(choices))
        np.testing.assert_allclose(getattr(y, "y", y), expected, atol=1e-6)


def test_the_gradient_reaches_the_router_by_the_recorded_experts(run):
    layer, _, choices = run
    layer.train()(torch.as_tensor(X), choices=torch.as_tensor(choices)).square().sum().backward()
    assert (layer.router.kernel.grad.abs().sum(dim=0) > 0)[np.unique(choices)].all()
    layer.zero_grad()


def test_padding_is_cut_from_the_choices_too(run):
    layer, expected, choices = run
    mask = torch.ones(IMAGES, T, dtype=torch.bool)
    mask[0, 3] = False
    y = layer.eval()(torch.as_tensor(X), mask=mask, choices=torch.as_tensor(choices)).detach().numpy()
    np.testing.assert_allclose(y, expected * mask.numpy()[..., None], atol=1e-6)


def test_choices_of_other_tokens_and_routers_without_replay(run):
    layer, _, choices = run
    for wrong in (choices[:, :-1], choices[0], choices[..., 0]):
        with pytest.raises(ShapeError, match=r"choices: expected the shape \(2, 8, choices\)"):
            layer(torch.as_tensor(X), choices=torch.as_tensor(wrong))
        with pytest.raises(ShapeError, match="choices"):
            eqx.MoE(**ARGUMENTS, inference=True)(jnp.asarray(X), choices=jnp.asarray(wrong))
    with pytest.raises(ConfigError, match="choices: soft_moe cannot replay"):
        MoE(D, 3, E, tokens=T)(torch.as_tensor(X), choices=torch.as_tensor(choices))


def test_choices_and_ids_that_are_no_arrays(run):
    layer, _, choices = run
    for wrong in (choices.tolist(), "text", 3):
        with pytest.raises(DtypeError, match=f"choices: expected a tensor, got {type(wrong).__name__}"):
            layer(torch.as_tensor(X), choices=wrong)
        with pytest.raises(DtypeError, match=f"choices: expected an array, got {type(wrong).__name__}"):
            flax.MoE(**ARGUMENTS, deterministic=True)(jnp.asarray(X), choices=wrong)
    hashed = eqx.MoE(D, 3, E, tokens=T, router="hash", inference=True)
    with pytest.raises(ShapeError, match=r"ids: expected the shape \(2, 8\) of the tokens, got \(2, 6\)"):
        hashed(jnp.asarray(X), np.zeros((IMAGES, T - 2), int))
    with pytest.raises(DtypeError, match="x: expected a floating dtype"):
        hashed(X.tolist())
