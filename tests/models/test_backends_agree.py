"""One model, three backends: the same initial bits, and what bfloat16 costs.

That they compute the same is in the conformance suite (whole networks, their gradients, training), in `test_interop`, against the
records of other projects, and in `test_draws`, with all that is drawn.
"""

from dataclasses import replace

import numpy as np
import pytest

from moespec.models import vit
from moespec.models.training.resolve import load_backend
from moespec.models.trees import flatten

TINY = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "width": 16, "depth": 2, "hidden": 4, "heads": 1}


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    pytest.importorskip(name)
    config = vit.VitConfig(**TINY, moe="last_1", experts=3, qk_norm=True, pool="map")
    params, B = vit.init(config, seed=7), load_backend(name)
    moved = flatten(B.to_numpy(B.from_numpy(params)))
    assert {path: value.astype(np.float32).tobytes() for path, value in moved.items()} == {
        path: value.tobytes() for path, value in flatten(params).items()
    }


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_bfloat16_is_near_float32(name: str) -> None:
    pytest.importorskip(name)
    config, B = vit.VitConfig(**TINY, moe="last_half", experts=3, router="softmax_token_choice"), load_backend(name)
    arguments = vit.init(config, seed=1), np.random.default_rng(2).standard_normal((2, 4, 4, 1))
    compiled = B.quick_compile if name == "jax" else lambda function: function
    single, half = (
        compiled(lambda params, images, model=model: vit.forward(B, model, params, images).features)(
            *B.from_numpy(arguments, "float32")
        )
        for model in (config, replace(config, dtype="bfloat16"))
    )
    assert half.dtype == single.dtype
    single, half = B.to_numpy([single, half])
    assert 0 < np.linalg.norm(single - half) / np.linalg.norm(single) < 0.05
