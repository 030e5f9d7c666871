"""No gather and no scatter of scalars has an index with a small last axis: a TPU reads whole tiles for it, 32 times the bytes."""

import importlib

import numpy as np
import pytest
from programs import equations

from moespec.models import vit
from moespec.training.objectives.classification import make_loss

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")


@pytest.mark.parametrize("router", ["softmax_token_choice", "gshard", "noisy_top_k", "sigmoid_token_choice", "relu"])
def test_indices_are_long(router: str) -> None:
    own = {"choices": 2} if router in ("softmax_token_choice", "noisy_top_k", "sigmoid_token_choice") else {}
    model = vit.named(
        "vit_tiny", router=router, router_options=own, moe="last_1", experts=16, depth=1,
        image_size=32, patch_size=4, group_images=4, channels=1, classes=10,
    )  # fmt: skip
    loss = make_loss(B, model, "softmax")
    batch = {"images": np.zeros((8, 32, 32, 1), np.float32), "targets": np.eye(10, dtype=np.float32)[:8]}
    batch["random"] = np.zeros((8, 4), np.int32)
    program = jax.make_jaxpr(jax.grad(lambda params, batch: loss(params, batch)[0]))(vit.init(model), batch)
    moves = [e for e in equations(program.jaxpr) if e.primitive.name.startswith(("gather", "scatter"))]
    shapes = [
        each.invars[1].aval.shape[:-1] for each in moves
    ]  # of the indices, without the axis of the coordinates of one
    found = [shape for shape in shapes if np.prod(shape) > 64]
    assert found
    assert all(shape[-1] >= 8 for shape in found), found
