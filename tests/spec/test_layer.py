"""The layer, its experts, the operations of the network, and the metrics of a routing."""

import math

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import norm

from moespec.spec import (
    ConfigError,
    Routing,
    ShapeError,
    attention,
    expert_choice,
    expert_mlp,
    gelu,
    layer_norm,
    moe_layer,
    patch_embed,
    routing_metrics,
    sigmoid_cross_entropy,
    soft_routing,
    softmax_affinity,
    softmax_cross_entropy,
    token_choice,
)
from moespec.spec.examples import LOGITS

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(6, 4))
PARAMS = {
    "w1": RANDOM.normal(size=(3, 4, 5)),
    "b1": RANDOM.normal(size=(3, 5)),
    "w2": RANDOM.normal(size=(3, 5, 4)),
    "b2": RANDOM.normal(size=(3, 4)),
}


def one_expert(e, x, form="tanh"):
    """The perceptron of expert e on the rows of x."""
    return gelu(x @ PARAMS["w1"][e] + PARAMS["b1"][e], form=form) @ PARAMS["w2"][e] + PARAMS["b2"][e]


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_expert_mlp_expert_by_expert(form):
    inputs = RANDOM.normal(size=(3, 2, 4))
    expected = [one_expert(e, inputs[e], form) for e in range(3)]
    np.testing.assert_allclose(expert_mlp(inputs, PARAMS, gelu=form), expected, rtol=1e-12)


def test_expert_mlp_needs_its_parameters():
    with pytest.raises(ConfigError, match="params: w2 is missing"):
        expert_mlp(np.zeros((3, 1, 4)), {name: PARAMS[name] for name in ("w1", "b1", "b2")})


def test_layer_may_change_the_width():
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    assert moe_layer(TOKENS, routing, lambda x: x[:, :, :3]).shape == (6, 3)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 4), (3, 3, 4)])
def test_experts_must_keep_their_slots(shape):
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises(ShapeError, match=r"^experts: "):
        moe_layer(TOKENS, routing, lambda x: np.zeros(shape))


def test_layer_checks_its_routing():
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises(ShapeError, match=r"^routing\.dispatch: axis 0 has 6 entries, expected 5"):
        moe_layer(TOKENS[:5], routing, lambda x: x)
    with pytest.raises(ShapeError, match=r"^routing\.combine: "):
        moe_layer(TOKENS, Routing(routing.dispatch, routing.combine[:, :, :1]), lambda x: x)


def test_gelu():
    x = np.linspace(-6, 6, 41)
    np.testing.assert_allclose(gelu(x, form="erf"), x * norm.cdf(x), atol=1e-15)
    assert 1e-5 < np.max(np.abs(gelu(x) - gelu(x, form="erf"))) < 5e-4
    assert gelu(0.0) == 0
    assert gelu([[-100.0, 100.0]]).tolist() == [[0.0, 100.0]]


def test_layer_norm():
    x, scale, bias = RANDOM.normal(size=(2, 3, 5)), RANDOM.normal(size=5), RANDOM.normal(size=5)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(layer_norm(x, scale, bias), expected * scale + bias, rtol=1e-12)
    np.testing.assert_allclose(layer_norm(x, scale), expected * scale, rtol=1e-12)
    assert np.array_equal(layer_norm(np.ones(3), np.ones(3)), np.zeros(3))
    assert not np.allclose(layer_norm(x, scale, epsilon=0.5), expected * scale)


def test_attention_head_by_head():
    q, k, v = RANDOM.normal(size=(3, 2, 4)), RANDOM.normal(size=(5, 2, 4)), RANDOM.normal(size=(5, 2, 4))
    for h in range(2):
        scores = np.exp(q[:, h] @ k[:, h].T / math.sqrt(4))
        expected = scores / scores.sum(axis=1, keepdims=True) @ v[:, h]
        np.testing.assert_allclose(attention(q, k, v)[:, h], expected, rtol=1e-12)


def test_patch_embedding_pixel_by_pixel():
    image, kernel, bias = RANDOM.normal(size=(4, 6, 3)), RANDOM.normal(size=(2, 2, 3, 5)), RANDOM.normal(size=5)
    patches = image.reshape(2, 2, 3, 2, 3).transpose(0, 2, 1, 3, 4).reshape(6, 12)
    np.testing.assert_allclose(patch_embed(image, kernel, bias), patches @ kernel.reshape(12, 5) + bias, rtol=1e-12)


def test_cross_entropies():
    logits, targets = 3 * RANDOM.normal(size=(2, 4, 5)), RANDOM.dirichlet(np.ones(5), size=(2, 4))
    expected = -np.sum(targets * log_softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(softmax_cross_entropy(logits, targets), expected, rtol=1e-12)
    sigmoid = 1 / (1 + np.exp(-logits))
    expected = -np.sum(targets * np.log(sigmoid) + (1 - targets) * np.log(1 - sigmoid), axis=-1)
    np.testing.assert_allclose(sigmoid_cross_entropy(logits, targets), expected, rtol=1e-11)
    assert sigmoid_cross_entropy([1000.0, -1000.0], [0.0, 1.0]) == 2000
    assert softmax_cross_entropy([1000.0, -1000.0], [0.0, 1.0]) == 2000


def test_metrics_of_a_sparse_routing():
    metrics = routing_metrics(token_choice(softmax_affinity(LOGITS), choices=1, capacity=2))
    np.testing.assert_allclose(metrics["load"], [2 / 6, 2 / 6, 1 / 6])
    assert metrics["coverage"] == pytest.approx(5 / 6)
    assert metrics["dropped"] == pytest.approx(1 / 6)
    assert metrics["entropy"] == 0


def test_metrics_of_a_soft_routing():
    metrics = routing_metrics(
        soft_routing(TOKENS, RANDOM.normal(size=(4, 3, 2)), dispatch="uniform", combine="uniform")
    )
    np.testing.assert_allclose(metrics["load"], 2 / 6)
    assert metrics["coverage"] == 1
    assert metrics["entropy"] == pytest.approx(math.log(3))


def test_metrics_count_a_covered_token_without_mass():
    dispatch = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])
    metrics = routing_metrics(Routing(dispatch, 0 * dispatch))
    assert metrics["coverage"] == 1
    assert metrics["entropy"] == 0


def test_metrics_are_real():
    routing = token_choice(softmax_affinity(LOGITS + 1e-30j), choices=2, capacity=2)
    assert all(value.dtype == np.float64 for value in routing_metrics(routing).values())
