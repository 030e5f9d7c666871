"""Sparse-MLP: counts, what is dropped, and its limits. What it computes is in the conformance suite."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
from of_models import drawn, images_for

import moespec.backends.numpy as B
from moespec import spec
from moespec.models import mixer, sparse_mlp
from moespec.models.draws import of_step
from moespec.models.trees import flatten
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Noise


def tiny(**fields):
    small = {
        **{"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 6, "depth": 2},
        **{"token_hidden": 5, "hidden": 7, "moe": "last_1", "sparse_tokens": 8, "sparse_width": 5},
        **{"token_experts": 3, "sparse_token_hidden": 4, "experts": 3, "sparse_hidden": 6},
    }
    return sparse_mlp.SparseMlpConfig(**{**small, **fields})


@pytest.mark.parametrize(
    ("size", "no_head", "imagenet"),
    [("s", 21_343_792, 21_856_792), ("b", 69_966_016, 70_735_016), ("l", 130_404_200, 131_173_200)],
)
def test_counts(size, no_head, imagenet):
    """Those of the paper: 21, 69 and 130 million."""
    models = [sparse_mlp.named(f"sparse_mlp_{size}", classes=classes) for classes in (0, 1000)]
    assert [sparse_mlp.parameter_count(model) for model in models] == [no_head, imagenet]


def test_counts_of_other_placements():
    four = sparse_mlp.named("sparse_mlp_b", moe="last_4", classes=0)
    assert round(sparse_mlp.parameter_count(four) / 1e6, 1) == 80.8
    first = sparse_mlp.named("sparse_mlp_b", moe="first_2")
    assert sparse_mlp.parameter_count(first) == 70_735_016


@pytest.mark.parametrize("experts", [0, 3])
def test_stochastic_depth_drops_what_the_experts_make_of_an_image(experts):
    """Where experts have room for all, as where what they make is multiplied by 0, or by 2, the inverse of the chance."""
    roomy = {"router": "softmax_token_choice", "router_options": {"capacity_factor": 3.0}}
    plain = tiny(experts=experts, **roomy)
    params, images, random = (
        B.from_numpy(drawn(sparse_mlp.init(plain))),
        images_for(plain, 12),
        of_step(12, seed=1, step=2),
    )
    draws = spec.unit_interval(spec.random_words([1, 0, 2, 0], stream=2 * 2**20, rows=12, columns=4))
    dropping = dataclasses.replace(plain, stochastic_depth=0.5)
    features = sparse_mlp.forward(B, dropping, params, images, random=random, train=True).features
    for factors in itertools.product((0.0, 2.0), repeat=2):
        scaled = copy.deepcopy(params)
        block = scaled["blocks"]["1"]
        branches = block["token_moe"]["experts"], block["channel_moe"]["experts"] if experts else block["channel_mlp"]
        for branch, factor in zip(branches, factors, strict=True):
            branch["w2"], branch["b2"] = factor * branch["w2"], factor * branch["b2"]
        alike = ((draws[:, 2:] >= 0.5) == np.array(factors, bool)).all(axis=1)
        assert alike.any()
        expected = sparse_mlp.forward(B, plain, scaled, images).features
        np.testing.assert_allclose(features[alike], expected[alike], rtol=1e-11, atol=1e-11)


def test_without_sparse_blocks_it_is_a_mixer():
    config = tiny(moe="none")
    shared = [f.name for f in dataclasses.fields(mixer.MixerConfig) if hasattr(config, f.name)]
    plain = mixer.MixerConfig(**{name: getattr(config, name) for name in shared})
    params, images = sparse_mlp.init(config, 3), images_for(config, 2)
    assert flatten(params).keys() == flatten(mixer.init(plain, 3)).keys()
    output = sparse_mlp.forward(B, config, B.from_numpy(params), images)
    np.testing.assert_array_equal(output.features, mixer.forward(B, plain, B.from_numpy(params), images).features)
    assert output.routings == []


def test_layers_and_noise():
    config = tiny(moe="last_2")
    layers = [layer.name for layer in sparse_mlp.moe_layers(config, 4)]
    assert layers == ["0_tokens", "0_channels", "1_tokens", "1_channels"]
    assert sparse_mlp.moe_noise(config, 4) == [Noise((1, 20, 3)), Noise((1, 32, 3))] * 2
    split = tiny(group_size=10, group_images=2)
    assert sparse_mlp.moe_noise(split, 4) == [Noise((2, 10, 3)), Noise((2, 16, 3))]
    assert sparse_mlp.moe_noise(tiny(experts=0), 4) == [Noise((1, 20, 3))]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sparse_tokens": 0}, "sparse_tokens=0"),
        ({"token_experts": 0}, "token_experts=0"),
        ({"experts": -1}, "experts=-1"),
        ({"group_size": -1}, "group_size=-1"),
        ({"token_choices": 4}, "token_choices=4: there are token_experts=3"),
        ({"choices": 4}, "choices=4: there are experts=3"),
        ({"router": "soft_moe"}, "router='soft_moe': expected one of 'importance_score', 'softmax_token_choice'"),
        ({"expert_init": "copied"}, "expert_init='copied'"),
        ({"router_options": {"choices": 2}}, r"router_options\.choices=2: importance_score does not have"),
    ],
)
def test_config_errors(fields, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**fields)


def test_errors_of_the_batch():
    config = tiny(group_size=10, group_images=2)
    params = sparse_mlp.init(config)
    with pytest.raises(ShapeError, match="cannot be split into groups of group_size=10"):
        sparse_mlp.forward(B, config, params, images_for(config, 3))
    with pytest.raises(ShapeError, match="cannot be split into groups of group_images=2"):
        sparse_mlp.forward(B, dataclasses.replace(config, group_size=0), params, images_for(config, 3))
    with pytest.raises(ConfigError, match="noise has 1 arrays: expected one for each of the 2 MoE layers"):
        sparse_mlp.forward(B, config, params, images_for(config, 2), noise=[np.zeros((1, 10, 3))])
