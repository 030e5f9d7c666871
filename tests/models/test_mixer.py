"""The MLP-Mixer: counts, the public flax implementation, initial values, and what its layers must satisfy.

`mixer_vectors` has a recorded run of the class `MlpMixer` of google-research/vision_transformer in float64, with its
provenance beside it: images, parameters, logits and gradients.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from moespec.models import mixer
from moespec.models.pytrees import flatten
from moespec.training.loop.resolve import load_backend

FOLDER = Path(__file__).parent / "mixer_vectors"
FLAX = json.loads((FOLDER / "flax_mixer.json").read_text())


def tiny(**fields):
    small = {"image_size": 8, "patch_size": 2, "channels": 3, "classes": 5}
    return mixer.MixerConfig(**{**small, "width": 6, "depth": 2, "token_hidden": 5, "hidden": 7, **fields})


@pytest.mark.parametrize(
    ("name", "no_head", "imagenet"),
    [
        ("mixer_s16", 18_015_264, 18_528_264),
        ("mixer_b16", 59_111_472, 59_880_472),
        ("mixer_l16", 207_171_168, 208_196_168),
    ],
)
def test_counts(name, no_head, imagenet):
    assert mixer.parameter_count(mixer.named(name, classes=0)) == no_head
    assert mixer.parameter_count(mixer.named(name)) == imagenet == FLAX["counts"][name]


def from_flax(tensors, kind, depth):
    """Our parameters, or their gradients, from those of flax, of which each is taken once."""
    theirs = {n.removeprefix(f"{kind}/"): v.astype(np.float64) for n, v in tensors.items() if n.startswith(f"{kind}/")}

    def norm(name):
        return {part: theirs.pop(f"{name}/{part}") for part in ("scale", "bias")}

    def linear(name):
        return {part: theirs.pop(f"{name}/{part}") for part in ("kernel", "bias")}

    def mlp(name):
        first, second = (linear(f"{name}/Dense_{i}") for i in range(2))
        return {"w1": first["kernel"], "b1": first["bias"], "w2": second["kernel"], "b2": second["bias"]}

    def block(number):
        name = f"MixerBlock_{number}"
        return {
            "norm1": norm(f"{name}/LayerNorm_0"),
            "token_mlp": mlp(f"{name}/token_mixing"),
            "norm2": norm(f"{name}/LayerNorm_1"),
            "channel_mlp": mlp(f"{name}/channel_mixing"),
        }

    ours = {
        "embedding": linear("stem"),
        "blocks": {str(number): block(number) for number in range(depth)},
        "norm": norm("pre_head_layer_norm"),
        "head": linear("head"),
    }
    assert not theirs
    return ours


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_it_is_the_mixer_of_flax(backend):
    """Logits and the gradient by every parameter, in float64."""
    module = load_backend(backend)
    model, tensors = FLAX["model"], load_file(FOLDER / "flax_mixer.safetensors")
    config = tiny(
        depth=model["num_blocks"],
        width=model["hidden_dim"],
        token_hidden=model["tokens_mlp_dim"],
        hidden=model["channels_mlp_dim"],
    )
    params = from_flax(tensors, "params", config.depth)
    assert {n: v.shape for n, v in flatten(params).items()} == flatten(mixer.parameter_shapes(config))
    images, cotangent = (tensors[name].astype(np.float64) for name in ("images", "cotangent"))

    def loss(params, batch):
        logits = mixer.forward(module, config, params, batch["images"]).logits
        return module.sum(batch["cotangent"] * logits), {"logits": logits}

    with module.with_dtype("float64") if hasattr(module, "with_dtype") else np.errstate():
        (_, outputs), gradients = module.to_numpy(
            module.value_and_grad(loss)(
                *module.from_numpy([params, {"images": images, "cotangent": cotangent}], "float64")
            )
        )
    np.testing.assert_allclose(outputs["logits"], tensors["logits"], rtol=1e-12, atol=1e-13)
    expected = flatten(from_flax(tensors, "gradients", config.depth))
    for name, value in flatten(gradients).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_initial_values():
    params = flatten(mixer.init(mixer.named("mixer_s16", depth=1)))
    assert params["blocks/0/token_mlp/w1"].std() == pytest.approx(196**-0.5, rel=0.02)
    assert params["blocks/0/token_mlp/w2"].std() == pytest.approx(256**-0.5, rel=0.02)
    assert params["blocks/0/channel_mlp/w1"].std() == pytest.approx(512**-0.5, rel=0.02)
    assert not params["blocks/0/channel_mlp/b1"].any()
    assert not params["head/kernel"].any()
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}
