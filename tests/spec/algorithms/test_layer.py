"""The layer and its experts: shared ones, other widths, and what cannot be. Its sums, vectors have."""

import numpy as np
import pytest
from router_inputs import perceptrons

from moespec.spec import ConfigError, ShapeError, expert_choice, expert_mlp, moe_layer, moe_mlp, softmax_affinity
from moespec.spec.examples import LOGITS

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(6, 4))
WIDTH, HIDDEN = 4, 3


def parameters(experts, seed):
    """Of expert MLPs with biases."""
    random = np.random.default_rng(seed)
    return perceptrons(lambda *shape: random.normal(size=shape), experts, WIDTH, HIDDEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": None}, "params: w2 is missing"),
        ({"b3": np.ones((3, HIDDEN))}, "params: w3 is missing"),
        ({"w4": np.ones((3, WIDTH, HIDDEN))}, "params: w4 is not one of w1, b1, w3"),
    ],
)
def test_expert_mlp_knows_its_parameters(change, message):
    params = {name: array for name, array in {**parameters(3, 0), **change}.items() if array is not None}
    with pytest.raises(ConfigError, match=message):
        expert_mlp(np.zeros((3, 1, WIDTH)), params)


@pytest.mark.parametrize(
    "shared", [{"w1": np.ones((WIDTH, 2))}, {"w1": np.ones((WIDTH, 2)), "w2": np.ones((3, WIDTH))}]
)
def test_a_shared_expert_is_checked_like_the_others(shared):
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises((ConfigError, ShapeError), match="w2"):
        moe_mlp(TOKENS, routing, parameters(3, 0), shared=shared)


def test_several_shared_experts_are_one_of_their_joint_width():
    """Their hidden units beside each other, and the sum of their last biases."""
    routing, one, two = expert_choice(softmax_affinity(LOGITS), capacity=2), parameters(1, 1), parameters(1, 2)
    alone = [{name: value[0] for name, value in each.items()} for each in (one, two)]
    joint = {name: np.concatenate([each[name] for each in alone], -1) for name in ("w1", "b1")}
    joint |= {"w2": np.concatenate([each["w2"] for each in alone]), "b2": alone[0]["b2"] + alone[1]["b2"]}
    result, first, second = (
        moe_mlp(TOKENS, routing, parameters(3, 0), shared=shared, activation="silu") for shared in (joint, *alone)
    )
    without = moe_mlp(TOKENS, routing, parameters(3, 0), activation="silu")
    np.testing.assert_allclose(result - without, first - without + second - without, rtol=1e-12)


def test_layer_may_change_the_width():
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    assert moe_layer(TOKENS, routing, lambda x: x[:, :, :3]).shape == (6, 3)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 4), (3, 3, 4)])
def test_experts_must_keep_their_slots(shape):
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises(ShapeError, match=r"^experts: "):
        moe_layer(TOKENS, routing, lambda x: np.zeros(shape))


@pytest.mark.parametrize(
    ("activation", "first", "second"),
    [
        ("clamped_silu", [-5 / (1 + np.exp(5)), 10 / (1 + np.exp(-10))], [-10, 10]),
        ("clamped_quick_gelu", [-5 / (1 + np.exp(8.51)), 7 / (1 + np.exp(-11.914))], [-6, 8]),
        (
            "situ",
            [-4 * np.tanh(1.25) / (1 + np.exp(5)), 4 * np.tanh(25) / (1 + np.exp(-100))],
            [-25 * np.tanh(2), 25 * np.tanh(2)],
        ),
    ],
)
def test_bounds_of_both_factors(activation, first, second):
    """The gate is bounded from above only, except that SiTU bounds its linear part; the numbers are written out once more."""
    params = {"w1": np.array([[[1.0], [0.0]]]), "w3": np.array([[[0.0], [1.0]]]), "w2": np.ones((1, 1, 1))}
    result = expert_mlp([[[-5.0, -50.0], [100.0, 50.0]]], params, activation=activation)
    np.testing.assert_allclose(result[0, :, 0], np.multiply(first, second), rtol=1e-12)


def test_squared_relu():
    result = expert_mlp([[[-2.0], [3.0]]], {"w1": np.ones((1, 1, 1)), "w2": np.ones((1, 1, 1))}, activation="relu2")
    assert result[0, :, 0].tolist() == [0.0, 9.0]
