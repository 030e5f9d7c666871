"""The MoE-ViT: sizes, placement, initial values, and what no vector of the conformance suite has."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from of_models import drawn, images_for

import moespec.backends.numpy as B
from moespec.models import vit
from moespec.models.layers import layer_norm
from moespec.models.pytrees import flatten
from moespec.spec.errors import ConfigError, ShapeError


def tiny(**fields):
    """A model of about a thousand parameters."""
    small = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3}
    return vit.VitConfig(**{**small, "width": 8, "depth": 2, "hidden": 12, "heads": 2, **fields})


@pytest.mark.parametrize(
    ("moe", "depth", "blocks"),
    [
        ("last_half", 12, (6, 7, 8, 9, 10, 11)),
        ("last_half", 5, (3, 4)),
        ("first_2", 12, (0, 1)),
        ("5,11", 12, (5, 11)),
        ("2, 5, 8, 11", 12, (2, 5, 8, 11)),
        ("0", 2, (0,)),
    ],
)
def test_placement(moe, depth, blocks):
    config = tiny(depth=depth, moe=moe, experts=2)
    assert vit.moe_blocks(config) == blocks


MOE = {"moe": "last_1", "experts": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 0}, "depth=0"),
        ({"heads": 3}, "heads=3 does not divide width=8"),
        ({"width": 6, "heads": 2, "positions": "sincos2d"}, "width=6"),
        ({"pool": "cls"}, "pool='cls'"),
        ({"moe": "last_1"}, "experts=0: moe='last_1'"),
        *(
            ({**MOE, "moe": moe}, message)
            for moe, message in (
                ("every_3", "moe='every_3'"),
                ("0,2", "moe='0,2': depth=2 has no block 2"),
                ("1,0", "moe='1,0': expected each block once"),
                ("1,", "moe='1,'"),
                ("every_2_last_2", "only 1 such blocks"),
            )
        ),
        *(
            ({**MOE, "router": router, "router_options": options}, rf"router_options\.{message}")
            for router, options, message in (
                ("soft_moe", {"top_k": 2}, r"top_k=2: soft_moe does not have this option; it has capacity_factor, "),
                ("gshard", {"balance_weight": math.nan}, "balance_weight=nan: expected"),
                ("softmax_token_choice", {"choices": 3}, "choices: "),
            )
        ),
        ({"router_options": {"choices": 7}}, r"router_options\.choices=7: soft_moe does not have this option"),
        ({**MOE, "group_images": 0}, "group_images=0"),
        ({**MOE, "router": "hash", "router_options": {"hashes": 2}, "round_experts": True}, "round_experts=True: expected"),
        ({"qk_norm_bias": True}, "qk_norm_bias=True"),
        ({"representation": -1}, "representation=-1: expected an integer of at least 0"),
        ({"group_tokens": 4, "group_images": 2}, "group_images=2 with group_tokens=4"),
        ({"norm_epsilon": 1e-39}, "norm_epsilon=1e-39: expected a finite number of at least 1.17549e-38 and at most 1"),
        ({"qkv_bias": 1}, "qkv_bias=1: expected True or False"),
        ({"width": "8"}, "width='8': expected an integer"),
        ({**MOE, "router": "hash", "router_options": {"hashes": 5}}, "5 hashes do not divide the hidden width 12"),
        ({**MOE, "router": "hash", "router_options": {"hashes": 2, "capacity_factor": 1.0}}, "MultiHash has no capacity"),
        *(({"dropout": rate}, "^dropout(='much')?: expected ") for rate in (-0.1, 1.0, math.nan, "much")),
        *(({"stochastic_depth": rate}, "^stochastic_depth(='much')?: expected ") for rate in (-0.1, 1.0, math.nan, "much")),
        ({"stem": 3}, r"stem=3: 2\^stem must divide patch_size=4"),
        ({"stem_depth": 2}, "stem_depth=2 has no effect without stem"),
        ({"stem": 1, "patch_size": 1}, r"stem=1: 2\^stem must divide patch_size=1"),
        ({"stem": 2, "width": 9, "heads": 1, "positions": "learned"}, r"stem=2: 2\^\(stem - 1\) must divide width=9"),
    ],
)  # fmt: skip
def test_config_errors(fields, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**fields)


def test_groups_of_tokens_that_do_not_fill():
    config = tiny(moe="last_1", experts=2, group_tokens=6)  # of 4 tokens an image
    assert config.fewest_images == 3
    assert vit.moe_layers(config, 6)[0].groups == 4
    with pytest.raises(ShapeError, match="8 tokens cannot be split into groups of group_tokens=6"):
        vit.moe_layers(config, 2)


def test_each_parameter_has_its_own_stream():
    with pytest.raises(ConfigError, match="seed=-1"):
        vit.init(tiny(), seed=-1)
    shallow, deep = (flatten(vit.init(tiny(depth=depth))) for depth in (2, 3))
    assert set(shallow) < set(deep)
    for name, value in shallow.items():
        assert value.tobytes() == deep[name].tobytes(), name
    first = shallow["blocks/0/mlp/w1"]
    assert not np.array_equal(first, shallow["blocks/1/mlp/w1"])
    assert not np.array_equal(first, vit.init(tiny(), seed=1)["blocks"]["0"]["mlp"]["w1"])


def test_expert_init():
    shared, independent = (
        vit.init(tiny(moe="last_1", experts=3, expert_init=kind))["blocks"]["1"]["moe"]["experts"]
        for kind in ("shared", "independent")
    )
    for name in ("w1", "b1", "w2", "b2"):
        assert all(np.array_equal(expert, shared[name][0]) for expert in shared[name])
        assert not np.array_equal(independent[name][0], independent[name][1])


def test_initial_distributions():
    config = vit.named("vit_ti16", depth=1, pool="map", head_bias=-10.0)
    params = flatten(vit.init(config))
    glorot = np.sqrt(6 / (192 + 192))
    for name in ("query", "key", "value", "out"):
        kernel = params[f"blocks/0/attention/{name}/kernel"]
        assert np.abs(kernel).max() <= glorot
        assert kernel.std() == pytest.approx(glorot / np.sqrt(3), rel=0.02)
    assert params["blocks/0/mlp/w1"].std() == pytest.approx(np.sqrt(2 / (192 + 768)), rel=0.02)
    assert params["blocks/0/mlp/b1"].std() == pytest.approx(1e-6, rel=0.1)
    assert params["embedding/kernel"].std() == pytest.approx(768**-0.5, rel=0.02)
    assert params["positions"].std() == pytest.approx(0.02, rel=0.02)
    assert np.abs(params["pool/probe"]).max() <= np.sqrt(6 / 193)
    assert not params["head/kernel"].any()
    assert (params["head/bias"] == -10).all()
    assert (params["norm/scale"] == 1).all()


def test_images_and_noise_that_do_not_fit():
    config = tiny(**MOE, group_images=4)
    params = B.from_numpy(drawn(vit.init(config)))
    for shape in ((2, 8, 8), (2, 8, 8, 3), (2, 4, 8, 1)):
        with pytest.raises(ShapeError, match=r"images: expected shape \(N, 8, 8, 1\), got"):
            vit.forward(B, config, params, np.zeros(shape))
    with pytest.raises(ShapeError, match="6 images cannot be split into groups of group_images=4"):
        vit.forward(B, config, params, images_for(config, 6))
    with pytest.raises(ConfigError, match="noise: expected 0 arrays, one for each MoE layer with noise, got 2"):
        vit.forward(B, config, params, images_for(config, 4), noise=[np.zeros((1, 4, 2))] * 2)


@pytest.mark.parametrize(("positions", "same"), [("none", True), ("learned", False), ("sincos2d", False)])
def test_without_positions_patches_have_no_place(positions, same):
    config = tiny(positions=positions, classes=0)
    params, images = B.from_numpy(drawn(vit.init(config))), images_for(config, 1)
    moved = np.concatenate([images[:, 4:], images[:, :4]], axis=1)  # the rows of patches change places
    one, other = (vit.forward(B, config, params, x).features for x in (images, moved))
    assert np.allclose(one, other, rtol=0, atol=1e-12) == same


def test_the_representation_is_a_layer_with_tanh_before_the_head():
    plain, config = tiny(classes=0), tiny(representation=5)
    params, images = B.from_numpy(drawn(vit.init(config))), images_for(config, 2)
    before = vit.forward(B, plain, {k: v for k, v in params.items() if k not in ("representation", "head")}, images)
    layer = params["representation"]
    features = np.tanh(before.features @ layer["kernel"] + layer["bias"])
    output = vit.forward(B, config, params, images)
    np.testing.assert_allclose(output.features, features, rtol=0, atol=1e-12)
    assert params["head"]["kernel"].shape == (5, 3)
    np.testing.assert_allclose(output.logits, features @ params["head"]["kernel"] + params["head"]["bias"], atol=1e-12)


# The stem of convolutions.


STEM = vit.named("vit_tiny", image_size=16, patch_size=8, stem=2, channels=3, depth=1)


@pytest.mark.parametrize(
    ("fields", "features", "kernel"),
    [({"stem": 3}, (3, 16, 32, 64), (1, 1, 64, 64)), ({"stem_depth": 2}, (3, 32, 32, 64, 64), (2, 2, 64, 64))],
)
def test_features_double_from_resolution_to_resolution_up_to_the_width_of_a_token(fields, features, kernel):
    shapes = vit.parameter_shapes(replace(STEM, **fields))
    convolutions = [shapes["stem"][str(number)] for number in range(len(features) - 1)]
    assert [each["kernel"] for each in convolutions] == [(3, 3, *pair) for pair in pairwise(features)]
    assert convolutions[-1]["norm"] == {"scale": (64,), "bias": (64,)}
    assert shapes["embedding"]["kernel"] == kernel


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_the_stem_is_convolutions_of_torch_with_a_norm_and_a_gelu(gelu, depth):
    """The model without a stem sees the same on what torch's own layers make of the image."""
    torch, config = pytest.importorskip("torch"), replace(STEM, gelu=gelu, stem_depth=depth)
    random = np.random.default_rng(0)
    params = B.from_numpy(vit.init(config), "float64")
    for p in params["stem"].values():
        p["bias"], p["norm"]["scale"], p["norm"]["bias"] = random.normal(size=(3, *p["bias"].shape))
    params["head"]["kernel"] = random.normal(size=params["head"]["kernel"].shape)
    images = random.normal(size=(2, 16, 16, 3))
    x = torch.tensor(images).permute(0, 3, 1, 2)
    for i in range(2 * depth):
        p = params["stem"][str(i)]
        kernel = torch.tensor(np.asarray(p["kernel"])).permute(3, 2, 0, 1)
        x = torch.nn.functional.conv2d(x, kernel, torch.tensor(p["bias"]), stride=1 if i % depth else 2, padding=1)
        normed = layer_norm(B, p["norm"], x.permute(0, 2, 3, 1).numpy())
        form = "tanh" if gelu == "tanh" else "none"
        x = torch.nn.functional.gelu(torch.tensor(normed), approximate=form).permute(0, 3, 1, 2)
    after = replace(config, stem=0, stem_depth=1, image_size=4, patch_size=2, channels=64)
    assert "stem" not in vit.parameter_shapes(after)
    expected = vit.forward(B, after, params, x.permute(0, 2, 3, 1).numpy()).logits
    np.testing.assert_allclose(vit.forward(B, config, params, images).logits, expected, rtol=1e-10, atol=1e-12)
