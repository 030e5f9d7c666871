"""Experts without an MLP, token by token, as MoE++ and LongCat-Flash compute them."""

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError, expert_mlp, moe_mlp, soft_routing, token_choice

RANDOM = np.random.default_rng(0)
T, D, H = 7, 4, 3
TOKENS = RANDOM.normal(size=(T, D))
PARAMS = {"w1": RANDOM.normal(size=(2, D, H)), "w2": RANDOM.normal(size=(2, H, D))}
CONSTANTS = {"value": RANDOM.normal(size=(2, D)), "mix": RANDOM.normal(size=(2, D, 2))}
KINDS = {"constants": CONSTANTS, "copies": 2, "zeros": 1}
ROUTING = token_choice(RANDOM.uniform(size=(T, 7)), choices=4, capacity=3)


def test_each_choice_adds_the_output_of_its_kind():
    result = moe_mlp(TOKENS, ROUTING, PARAMS, **KINDS)
    for x, weights, y in zip(TOKENS, ROUTING.combine.sum(axis=2), result, strict=True):
        expected = weights[:2] @ expert_mlp(np.tile(x, (2, 1, 1)), PARAMS)[:, 0]
        for weight, value, mix in zip(weights[2:4], CONSTANTS["value"], CONSTANTS["mix"], strict=True):
            a, b = np.exp(x @ mix) / np.exp(x @ mix).sum()
            expected = expected + weight * (a * x + b * value)
        np.testing.assert_allclose(y, expected + weights[4:6].sum() * x, rtol=1e-12, atol=1e-14)


def test_slots_that_mix_tokens_are_copied_as_they_are():
    routing = soft_routing(TOKENS, RANDOM.normal(size=(D, 3, 2)), scale=1.0)
    alone = type(routing)(routing.dispatch[:, :2], routing.combine[:, :2])
    copied = moe_mlp(TOKENS, routing, PARAMS, copies=1) - moe_mlp(TOKENS, alone, PARAMS)
    expected = routing.combine[:, 2] @ (routing.dispatch[:, 2].T @ TOKENS)
    np.testing.assert_allclose(copied, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"copies": -1}, ConfigError, "copies: expected at least 0, got -1"),
        ({"zeros": 1.5}, ConfigError, "zeros: expected an integer, got 1.5"),
        (
            {"copies": 4},
            ShapeError,
            "routing: has 7 experts, expected at least one MLP expert besides 2 constant, 4 copy",
        ),
        ({"copies": 1}, ShapeError, "w1: axis 0 has 2 entries, expected 3"),
        ({"constants": {"value": CONSTANTS["value"]}}, ConfigError, "constants: mix is missing"),
        ({"constants": {**CONSTANTS, "mix": np.ones((2, D, 3))}}, ShapeError, "mix: axis 2 has 3 entries, expected 2"),
        ({"constants": {**CONSTANTS, "value": np.ones((2, D + 1))}}, ShapeError, "value: axis 1 has 5 entries"),
    ],
)
def test_the_kinds_are_checked(change, error, message):
    with pytest.raises(error, match=message):
        moe_mlp(TOKENS, ROUTING, PARAMS, **{**KINDS, **change})
