"""Combine weights on the inputs of the experts, token by token, as Llama 4 computes them."""

import numpy as np
import pytest

from moespec.spec import ConfigError, expert_mlp, moe_mlp, token_choice

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(6, 4))
PARAMS = {"w1": RANDOM.normal(size=(3, 4, 5)), "b2": RANDOM.normal(size=(3, 4)), "w2": RANDOM.normal(size=(3, 5, 4))}
ROUTING = token_choice(RANDOM.uniform(size=(6, 3)), choices=2, capacity=6)


def test_each_choice_weights_the_token_before_its_expert():
    result = moe_mlp(TOKENS, ROUTING, PARAMS, weights_on="input")
    for x, weights, y in zip(TOKENS, ROUTING.combine.sum(axis=2), result, strict=True):
        outputs = expert_mlp((weights[:, None] * x)[:, None], PARAMS)[:, 0]
        np.testing.assert_allclose(y, outputs[weights > 0].sum(axis=0), rtol=1e-12, atol=1e-14)


def test_the_place_of_the_weights_is_checked():
    with pytest.raises(ConfigError, match="weights_on: expected one of 'output', 'input', got 'both'"):
        moe_mlp(TOKENS, ROUTING, PARAMS, weights_on="both")
