"""Random numbers of a training step: what they depend on, that a split of the batch changes nothing, and what is dropped."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from of_models import drawn, images_for

import moespec.backends.numpy as B
from moespec.models import mixer, sparse_mlp, vit
from moespec.models.families import Config, family
from moespec.models.random_keys import gating_noise, of_step
from moespec.spec import ConfigError, DtypeError, ShapeError, random_words, unit_interval
from moespec.spec.routing import Noise

IMAGES = 4
SMALL: dict[str, Any] = {
    "image_size": 4,
    "patch_size": 2,
    "channels": 1,
    "classes": 3,
    "width": 6,
    "depth": 3,
    "hidden": 5,
}
VIT = vit.VitConfig(**SMALL, heads=2, dropout=0.25, stochastic_depth=0.5, pool="token")
MOE = vit.VitConfig(
    **SMALL, heads=2, moe="last_2", router="softmax_token_choice", experts=3, group_images=2, stochastic_depth=0.5
)
MIXER = mixer.MixerConfig(**SMALL, token_hidden=3, dropout=0.25, stochastic_depth=0.5)
SPARSE = sparse_mlp.SparseMlpConfig(
    **{**SMALL, "token_hidden": 3, "moe": "1", "sparse_tokens": 5, "sparse_width": 4, "sparse_hidden": 3},
    **{"token_experts": 2, "sparse_token_hidden": 3, "experts": 2, "group_size": 8, "group_images": 2},
    stochastic_depth=0.5,
)
PICTURES = images_for(VIT, IMAGES).astype(np.float32)
MODELS: dict[str, Config] = {"vit": VIT, "moe": MOE, "mixer": MIXER, "sparse_mlp": SPARSE}


def noise_of(noise: Noise, images: int = IMAGES, seed: int = 3, step: int = 5, **change: Any) -> Any:
    random = of_step(images, seed=seed, step=step)
    (drawn,) = gating_noise(change.get("B", B), [noise], random, np.zeros(images)) or ()
    return drawn


@pytest.mark.parametrize("noise", [Noise((2, 6, 3)), Noise((2, 6, 3), (-1.0, 1.0)), Noise((2, 6), (0.0, 1.0))])
def test_noise_is_a_function_of_seed_step_token_and_expert(noise: Noise) -> None:
    drawn = noise_of(noise)
    assert drawn.shape == noise.shape
    np.testing.assert_array_equal(drawn, noise_of(noise))
    others = [noise_of(noise, seed=4), noise_of(noise, seed=3 + 2**32), noise_of(noise, step=6)]
    assert all((drawn != other).all() for other in others)
    random = of_step(IMAGES, seed=3, step=5)
    pair = gating_noise(B, [noise, noise], random, np.zeros(IMAGES))
    assert (pair[0] != pair[1]).all(), "each layer has its own"


def test_a_token_has_its_noise_whatever_the_groups_and_the_experts_are() -> None:
    """12 tokens in one group or in four, three experts or five."""
    first = noise_of(Noise((1, 12, 3))).reshape(12, 3)
    np.testing.assert_array_equal(noise_of(Noise((4, 3, 3))).reshape(12, 3), first)
    np.testing.assert_array_equal(noise_of(Noise((1, 12, 5)))[0, :, :3], first)
    words = random_words([3, 0, 5, 0], stream=0, rows=12, columns=1)
    uniform = noise_of(Noise((12, 1), (-1.0, 1.0)))
    np.testing.assert_array_equal(uniform, 2 * unit_interval(words) - 1)


def test_integers_of_a_step() -> None:
    rows = of_step(3, seed=2**63 - 1, step=9)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[-1, 2**31 - 1, 9, image] for image in range(3)]


def logits(B: Any, config: Config, images: Any, random: Any, *, compiled: bool = False, train: bool = True) -> Any:
    """In training, the noise of the routers and what is dropped."""
    module = family(config)
    params = drawn(module.init(config, 1))

    def forward(params: Any, images: Any, random: Any) -> Any:
        noise = gating_noise(B, module.moe_noise(config, images.shape[0]), random, images) if train else None
        return module.forward(B, config, params, images, noise=noise, random=random, train=train).logits

    run = B.quick_compile(forward) if compiled else forward
    return B.to_numpy(run(*(B.from_numpy(each) for each in (params, images, random))))


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_batch_draw_what_the_whole_draws(name: str) -> None:
    images, random = PICTURES, of_step(IMAGES, seed=3, step=5)
    whole = logits(B, MODELS[name], images, random)
    parts = [logits(B, MODELS[name], images[part], random[part]) for part in (slice(2), slice(2, 4))]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-12)
    again = logits(B, MODELS[name], images[2:], of_step(2, seed=3, step=5))
    assert (np.abs(again - whole[2:]) > 1e-6).any(), "counted from 0 in each part they would be others"


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", MODELS)
def test_backends_draw_the_same_numbers(name: str, backend: str) -> None:
    other = importlib.import_module(f"moespec.backends.{backend}")
    images, random = PICTURES, of_step(IMAGES, seed=2**40, step=5)
    expected = logits(B, MODELS[name], images, random)
    compiled = backend == "jax" or name == "moe"  # for torch that takes longer, and the draws are the same functions
    np.testing.assert_allclose(logits(other, MODELS[name], images, random, compiled=compiled), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["vit", "mixer", "sparse_mlp"])
def test_nothing_is_dropped_at_evaluation(name: str) -> None:
    config, images, random = MODELS[name], PICTURES, of_step(IMAGES, seed=3, step=5)
    module = family(config)
    params = module.init(config, 1)
    rates = [name for name in ("dropout", "stochastic_depth") if hasattr(config, name)]
    plain = replace(config, **dict.fromkeys(rates, 0.0))
    quiet = logits(B, plain, images, random)
    still = [logits(B, each, images, random, train=False) for each in (config, plain)]
    np.testing.assert_array_equal(*still)
    assert (np.abs(logits(B, config, images, random) - quiet) > 1e-6).any()
    with pytest.raises(ConfigError, match=r"random=None: .*dropout=0\.(25|0) .*stochastic_depth=0\.5"):
        module.forward(B, config, params, images, train=True)
    with pytest.raises(ShapeError, match="random: axis 0 has 3"):
        module.forward(B, config, params, images, random=random[:3], train=True)
    with pytest.raises(DtypeError, match="random: "):
        module.forward(B, config, params, images, random=random.astype(float), train=True)
