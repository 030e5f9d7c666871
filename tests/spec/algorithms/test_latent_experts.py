"""Latent experts, token by token, as Megatron-LM and Kimi K3 compute them."""

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError, expert_mlp, moe_mlp, softmax_affinity, token_choice
from moespec.spec.examples import LOGITS

RANDOM = np.random.default_rng(0)
D, L, H = 4, 3, 5
TOKENS = RANDOM.normal(size=(len(LOGITS), D))
PARAMS = {name: RANDOM.normal(size=(3, *shape)) for name, shape in {"w1": (L, H), "w3": (L, H), "w2": (H, L)}.items()}
LATENT = {"down": RANDOM.normal(size=(D, L)), "norm": RANDOM.normal(size=L), "up": RANDOM.normal(size=(L, D))}
SHARED = {"w1": RANDOM.normal(size=(D, H)), "w2": RANDOM.normal(size=(H, D))}


@pytest.mark.parametrize("norm", [False, True])
def test_each_token_is_projected_once_down_and_once_up(norm):
    routing = token_choice(softmax_affinity(LOGITS), choices=2, capacity=3)
    latent = {name: value for name, value in LATENT.items() if norm or name != "norm"}
    result = moe_mlp(TOKENS, routing, PARAMS, latent=latent, shared=SHARED, activation="silu", norm_epsilon=1e-5)
    for x, weights, y in zip(TOKENS, routing.combine.sum(axis=2), result, strict=True):
        inputs = np.tile(x @ LATENT["down"], (3, 1, 1))
        combined = weights @ expert_mlp(inputs, PARAMS, activation="silu")[:, 0]
        if norm:
            combined = combined / np.sqrt((combined**2).mean() + 1e-5) * LATENT["norm"]
        shared = expert_mlp(x[None, None], {name: value[None] for name, value in SHARED.items()}, activation="silu")
        np.testing.assert_allclose(y, combined @ LATENT["up"] + shared[0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"up": None}, ConfigError, "latent: up is missing"),
        ({"scale": np.ones(L)}, ConfigError, "latent: scale is not one of down, norm, up"),
        ({"down": np.ones((D + 1, L))}, ShapeError, "down: axis 0 has 5 entries, expected 4"),
        ({"norm": np.ones(L + 1)}, ShapeError, "norm: axis 0 has 4 entries, expected 3"),
        ({"up": np.ones((L + 1, D))}, ShapeError, "up: axis 0 has 4 entries, expected 3"),
    ],
)
def test_the_projections_are_checked(change, error, message):
    routing = token_choice(softmax_affinity(LOGITS), choices=2, capacity=3)
    latent = {name: value for name, value in {**LATENT, **change}.items() if value is not None}
    with pytest.raises(error, match=message):
        moe_mlp(TOKENS, routing, PARAMS, latent=latent)
