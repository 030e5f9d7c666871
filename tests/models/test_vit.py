"""The MoE-ViT on the NumPy backend: sizes, placement, initial values, and what its layers must satisfy."""

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import moespec.backends.numpy as B
from moespec.models import vit
from moespec.models.trees import flatten
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routers import ROUTERS
from moespec.spec.routing import Noise

JFT_4B, JFT_300M, IMAGENET = 29_593, 18_291, 1000


def tiny(**fields):
    """A model of about a thousand parameters."""
    small = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3}
    return vit.VitConfig(**{**small, "width": 8, "depth": 2, "hidden": 12, "heads": 2, **fields})


def parameters(config, seed=0):
    """Initial parameters in float64, with a head that is not zero."""
    params = vit.init(config, seed)
    if config.classes:
        kernel = params["head"]["kernel"]
        params["head"]["kernel"] = np.random.default_rng(seed).standard_normal(kernel.shape)
    return B.from_numpy(params)


def images_for(config, count, seed=0):
    shape = (count, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(seed).standard_normal(shape)


# ------------------------------------------------------------------------------------------------ parameter counts


@pytest.mark.parametrize(
    ("name", "no_head", "imagenet", "jft_300m", "jft_4b"),
    [
        ("vit_s32", 22_493_184, 22_878_184, 29_535_219, 33_886_489),
        ("vit_s16", 21_664_896, 22_049_896, 28_706_931, 33_058_201),
        ("vit_s14", 21_618_816, 22_003_816, 28_660_851, 33_012_121),
        ("vit_s8", 21_669_504, 22_054_504, 28_711_539, 33_062_809),
        ("vit_b32", 87_453_696, 88_222_696, 101_519_475, 110_210_713),
        ("vit_b16", 85_797_120, 86_566_120, 99_862_899, 108_554_137),
        ("vit_l32", 305_508_352, 306_533_352, 324_256_627, 335_841_177),
        ("vit_l16", 303_299_584, 304_324_584, 322_047_859, 333_632_409),
        ("vit_h14", 630_762_240, 632_043_240, 654_193_011, 668_670_873),
    ],
)
def test_counts_of_dense_models(name, no_head, imagenet, jft_300m, jft_4b):
    counts = [vit.parameter_count(vit.named(name, classes=n)) for n in (0, IMAGENET, JFT_300M, JFT_4B)]
    assert counts == [no_head, imagenet, jft_300m, jft_4b]


@pytest.mark.parametrize(("name", "more"), [("vit_s16", 1536), ("vit_b16", 1536), ("vit_l16", 3072), ("vit_h14", 5120)])
def test_counts_of_query_and_key_norms(name, more):
    assert vit.parameter_count(vit.named(name, qk_norm=True)) - vit.parameter_count(vit.named(name)) == more


@pytest.mark.parametrize(
    ("name", "experts", "capacity_factor", "count"),
    [
        ("vit_s16", 128, 128 / 196, 933_709_471),
        ("vit_s14", 256, 1.0, 1_841_402_527),
        ("vit_b16", 128, 128 / 196, 3_707_638_687),
        ("vit_l16", 128, 128 / 196, 13_127_249_829),
        ("vit_h14", 256, 1.0, 54_177_406_889),
        ("vit_h14", 128, 0.5, 27_318_132_649),
    ],
)
def test_counts_of_soft_moe(name, experts, capacity_factor, count):
    options = {"capacity_factor": capacity_factor}  # of one slot an expert
    config = vit.named(name, classes=JFT_4B, qk_norm=True, moe="last_half", experts=experts, router_options=options)
    assert vit.parameter_count(config) == count


@pytest.mark.parametrize(("name", "millions"), [("vit_b32", 980.0), ("vit_b16", 978.4), ("vit_l16", 3444.9)])
@pytest.mark.parametrize(
    "router",
    [name for name in ROUTERS if name not in ("soft_moe", "dselect_k", "hash", "noisy_top_k", "hierarchical_top_k")],
)
def test_counts_of_the_routers_study(name, millions, router):
    config = vit.named(name, classes=JFT_300M, pool="token", moe="every_2", router=router, experts=32)
    assert round(vit.parameter_count(config) / 1e6, 1) == millions


@pytest.mark.parametrize("pool", ["gap", "token", "map"])
@pytest.mark.parametrize("positions", ["learned", "sincos2d", "sincos2d_moco"])
@pytest.mark.parametrize("router", ["soft_moe", "softmax_token_choice"])
def test_shapes_are_those_of_the_initial_parameters(pool, positions, router):
    config = tiny(pool=pool, positions=positions, qk_norm=True, moe="last_1", experts=3, router=router)
    params, shapes = flatten(vit.init(config)), flatten(vit.parameter_shapes(config))
    assert {name: value.shape for name, value in params.items()} == shapes
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}
    assert sum(value.size for value in params.values()) == vit.parameter_count(config)


# ----------------------------------------------------------------------------------------------------------- names


def test_names():
    configs = {vit.named(name) for name in vit.NAMES}
    assert "vit_tiny" in vit.NAMES
    assert (len(configs), {config.moe for config in configs}) == (len(vit.NAMES), {"none"})
    assert vit.named("vit_ti28").patch_size == 28
    assert vit.named("vit_b12", image_size=384).sequence == 32 * 32
    for name in ("vit_x16", "vit_b", "vit_b0", "resnet50", "vit_b16_"):
        with pytest.raises(ConfigError, match=f"name='{name}'"):
            vit.named(name)
    with pytest.raises(ConfigError, match="widht=3 is not a field"):
        vit.named("vit_b16", widht=3)
    with pytest.raises(ConfigError, match="seed=-1"):
        vit.init(tiny(), seed=-1)


def test_create_binds_the_chosen_backend_and_listing_chooses_none():
    code = """
from moespec import models
from moespec.spec.errors import ConfigError
import sys
assert models.list_models() and "moespec.backends.numpy" not in sys.modules
model = models.create("vit_tiny", moe="last_half", router="soft_moe", experts=4)
params = model.init(seed=1)
import numpy as np
output = model.forward(model.backend.from_numpy(params), np.zeros((2, 8, 8, 1)))
assert model.backend.name == "numpy" and output.logits.shape == (2, 10) and len(output.routings) == 2
assert model.parameter_count == models.vit.parameter_count(model.config)
for bad, message in (
    (lambda: models.create("vit_b61"), "patch_size=61 does not divide"),
    (lambda: models.create("vit_xb16"), "vit_b16"),
    (lambda: models.create("vit_b16", experts=8), "experts=8 concerns MoE blocks"),
    (lambda: models.create("vit_b16", moe="every_2"), "needs at least one expert"),
):
    try:
        bad()
    except ConfigError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""
    environment = {**os.environ, "MOESPEC_BACKEND": "numpy"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# ------------------------------------------------------------------------------------------------- config, placement


@pytest.mark.parametrize(
    ("moe", "depth", "blocks"),
    [
        ("none", 12, ()),
        ("every_2", 12, (1, 3, 5, 7, 9, 11)),
        ("every_2", 5, (1, 3)),
        ("last_half", 12, (6, 7, 8, 9, 10, 11)),
        ("last_half", 5, (3, 4)),
        ("last_2", 12, (10, 11)),
        ("last_12", 12, tuple(range(12))),
        ("every_2_last_2", 8, (5, 7)),
        ("every_2_last_4", 8, (1, 3, 5, 7)),
        ("first_2", 12, (0, 1)),
        ("first_3", 3, (0, 1, 2)),
        ("5,11", 12, (5, 11)),
        ("2, 5, 8, 11", 12, (2, 5, 8, 11)),
        ("0", 2, (0,)),
    ],
)
def test_placement(moe, depth, blocks):
    config = tiny(depth=depth, moe=moe, experts=2)
    assert vit.moe_blocks(config) == blocks
    numbers = tuple(int(n) for n, block in vit.parameter_shapes(config)["blocks"].items() if "moe" in block)
    assert numbers == blocks


MOE = {"moe": "last_1", "experts": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 0}, "depth=0"),
        ({"classes": -1}, "classes=-1"),
        ({"patch_size": 3}, "patch_size=3 does not divide image_size=8"),
        ({"heads": 3}, "heads=3 does not divide width=8"),
        ({"width": 6, "heads": 2, "positions": "sincos2d"}, "width=6"),
        ({"width": 4, "heads": 2, "positions": "sincos2d"}, "width=4"),
        ({"pool": "cls"}, "pool='cls'"),
        ({"positions": "rope"}, "positions='rope'"),
        ({"gelu": "relu"}, "gelu='relu'"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"expert_init": "copied"}, "expert_init='copied'"),
        ({"moe": "last_1"}, "experts=0: moe='last_1'"),
        *(
            ({**MOE, "moe": moe}, message)
            for moe, message in (
                ("every_3", "moe='every_3'"),
                ("last_0", "moe='last_0'"),
                ("first_3", "moe='first_3': only 2 such blocks when depth=2"),
                ("0,2", "moe='0,2': there is no block 2 when depth=2"),
                ("1,0", "moe='1,0': expected each block once"),
                ("1,1", "moe='1,1': expected each block once"),
                ("1,", "moe='1,'"),
                ("-1", "moe='-1'"),
                ("last_3", "moe='last_3': only 2 such blocks when depth=2"),
                ("every_2_last_2", "only 1 such blocks"),
            )
        ),
        *(
            ({**MOE, "router": router, "router_options": options}, rf"router_options\.{message}")
            for router, options, message in (
                ("soft_moe", {"top_k": 2}, r"top_k=2: soft_moe does not have this option; it has capacity_factor, "),
                ("soft_moe", {"tokens": 2}, "tokens=2: soft_moe does not have"),
                ("soft_moe", {"choices": 7}, "choices=7: soft_moe does not"),
                ("switch", {"jitter": -0.1}, r"jitter=-0\.1: expected"),
                ("gshard", {"balance_weight": math.nan}, "balance_weight=nan: expected"),
                ("softmax_token_choice", {"choices": 3}, "choices: "),
                ("softmax_token_choice", {"batch_priority": "x"}, "batch_priority='x': expected one of 'none', 'max', 'sum'"),
            )
        ),
        ({"router_options": {"choices": 7}}, r"router_options\.choices=7: soft_moe does not have this option"),
        ({**MOE, "router": "softmax"}, "router='softmax'"),
        ({**MOE, "group_images": 0}, "group_images=0"),
        ({**MOE, "router": "hash", "router_options": {"hashes": 2}, "round_experts": True}, "round_experts=True: MultiHash"),
        ({"qk_norm_bias": True}, "qk_norm_bias=True"),
        ({"registers": -1}, "registers=-1"),
        ({"representation": -1}, "representation=-1: expected an integer of at least 0"),
        ({"group_tokens": -1}, "group_tokens=-1"),
        ({"group_tokens": 4, "group_images": 2}, "group_images=2 with group_tokens=4"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0"),
        ({"norm_epsilon": 1e-39}, "norm_epsilon=1e-39: expected a finite number of at least 1.17549e-38 and at most 1"),
        ({"norm_epsilon": "1e-6"}, "norm_epsilon='1e-6': expected a finite number"),
        ({"norm_epsilon": math.nan}, "norm_epsilon=nan"),
        ({"qkv_bias": 1}, "qkv_bias=1: expected True or False"),
        ({"registers": 4.0}, r"registers=4\.0: expected an integer"),
        ({"width": "8"}, "width='8': expected an integer"),
        ({"pool": None}, "pool=None: expected one of"),
        ({"layer_scale": -0.1}, "layer_scale=-0.1"),
        ({"layer_scale": math.inf}, "layer_scale=inf"),
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


def test_router_config_holds_the_options_and_the_group():
    options = {"choices": 2, "capacity_factor": 1.5}
    config = tiny(
        pool="token", moe="last_1", router="softmax_token_choice", experts=4, router_options=options, group_images=3
    )
    router = vit.router_config(config)
    assert (router.width, router.experts, router.tokens) == (8, 4, 3 * 5)
    assert (router.choices, router.capacity_factor, router.importance_weight) == (2, 1.5, 0.005)
    assert vit.moe_noise(config, 6) == [Noise((2, 15, 4))]


# -------------------------------------------------------------------------------------------------- initial values


def test_each_parameter_has_its_own_stream():
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


# --------------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("rule", ["sincos2d", "sincos2d_moco"])
def test_sincos_positions(rule):
    """One frequency at a time, from the formula: the first half encodes the column (or, for MoCo, the row)."""
    config = tiny(image_size=12, width=16, positions=rule)
    positions = vit._sincos_positions(B, config, np.zeros(1))
    assert positions.shape == (1, 9, 16)
    for row in range(3):
        for column in range(3):
            u, v = (column, row) if rule == "sincos2d" else (row, column)
            for i in range(4):
                frequency = 10000 ** (-i / (3 if rule == "sincos2d" else 4))
                waves = [np.sin(u * frequency), np.cos(u * frequency), np.sin(v * frequency), np.cos(v * frequency)]
                np.testing.assert_allclose(positions[0, 3 * row + column, i::4], waves, rtol=0, atol=1e-15)


def test_images_and_noise_that_do_not_fit():
    config = tiny(**MOE, group_images=4)
    params = parameters(config)
    for shape in ((2, 8, 8), (2, 8, 8, 3), (2, 4, 8, 1)):
        with pytest.raises(ShapeError, match=r"images has shape .* expected \(N, 8, 8, 1\)"):
            vit.forward(B, config, params, np.zeros(shape))
    with pytest.raises(ShapeError, match="6 images cannot be split into groups of group_images=4"):
        vit.forward(B, config, params, images_for(config, 6))
    with pytest.raises(ConfigError, match="noise has 2 arrays: expected one for each of the 1 MoE layers"):
        vit.forward(B, config, params, images_for(config, 4), noise=[np.zeros((1, 4, 2))] * 2)


def test_no_head():
    config = tiny(classes=0)
    output = vit.forward(B, config, parameters(config), images_for(config, 2))
    assert output.logits is None
    assert output.features.shape == (2, 8)


@pytest.mark.parametrize(
    "router", [name for name in ROUTERS if name not in ("soft_moe", "base", "gshard", "strictly_balanced")]
)
def test_one_expert_with_room_for_all_is_the_dense_model(router):
    """With one expert every softmax is 1, so the gate is one; no sparse router may differ from the dense MLP.

    The gate of BASE is a sigmoid, which is less than 1, and GShard needs two experts. The thresholds of strictly balanced
    gating begin at 1 / E, which a gate of 1 does not exceed.
    """
    one = {"choices": 1} if "choices" in {field.name for field in dataclasses.fields(ROUTERS[router].Options)} else {}
    moe = tiny(depth=1, moe="last_1", experts=1, router=router, group_images=2, router_options=one)
    dense = dataclasses.replace(moe, moe="none")
    params = parameters(moe)
    block = params["blocks"]["0"]
    mlp = {name: value[0] for name, value in block["moe"]["experts"].items()}
    dense_block = {**{name: value for name, value in block.items() if name != "moe"}, "mlp": mlp}
    images = images_for(moe, 4)
    expected = vit.forward(B, dense, {**params, "blocks": {"0": dense_block}}, images)
    actual = vit.forward(B, moe, params, images)
    np.testing.assert_allclose(actual.logits, expected.logits, rtol=1e-13, atol=1e-13)


def test_groups_of_one_image_do_not_see_each_other_and_larger_groups_do():
    images = images_for(tiny(), 4)
    changed = images.copy()
    changed[1] += 1
    for group_images, is_seen in ((1, False), (2, True)):
        config = tiny(moe="last_1", experts=2, group_images=group_images)
        params = parameters(config)
        before, after = (vit.forward(B, config, params, x).logits for x in (images, changed))
        assert np.array_equal(before[0], after[0]) is not is_seen
        assert np.array_equal(before[2:], after[2:])


def test_losses_are_summed_over_blocks_and_noise_goes_to_its_block():
    config = tiny(moe="last_2", experts=4, router="softmax_token_choice", router_options={"z_weight": 0.1})
    params, images = parameters(config), images_for(config, 2)
    rng = np.random.default_rng(1)
    noise = [rng.standard_normal(noise.shape) for noise in vit.moe_noise(config, 2)]
    output = vit.forward(B, config, params, images, noise=noise, train=True)
    assert sorted(output.losses) == ["importance", "load", "z"]
    assert output.losses["z"] == pytest.approx(0.1 * sum(metrics["z_loss"] for metrics in output.metrics))
    assert len(output.routings) == len(output.metrics) == 2
    other = vit.forward(B, config, params, images, noise=[noise[0], -noise[1]], train=True)
    assert np.array_equal(output.routings[0].weight, other.routings[0].weight)
    assert not np.array_equal(output.routings[1].weight, other.routings[1].weight)


def test_the_class_token_sees_patches_without_positions_in_any_order():
    config = tiny(pool="token")
    params, images = parameters(config), images_for(config, 2)
    params["positions"] = np.zeros_like(params["positions"])
    before, after = (
        vit.forward(B, config, params, x).features for x in (images, np.roll(images, config.patch_size, axis=2))
    )
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


# --------------------------------------------------------------------------------- no positions, a layer before the head


@pytest.mark.parametrize(("positions", "same"), [("none", True), ("learned", False), ("sincos2d", False)])
def test_without_positions_patches_have_no_place(positions, same):
    config = tiny(positions=positions, classes=0)
    params, images = parameters(config), images_for(config, 1)
    moved = np.concatenate([images[:, 4:], images[:, :4]], axis=1)  # the rows of patches change places
    one, other = (vit.forward(B, config, params, x).features for x in (images, moved))
    assert np.allclose(one, other, rtol=0, atol=1e-12) == same


def test_the_representation_is_a_layer_with_tanh_before_the_head():
    plain, config = tiny(classes=0), tiny(representation=5)
    params, images = parameters(config, 1), images_for(config, 2)
    before = vit.forward(B, plain, {k: v for k, v in params.items() if k not in ("representation", "head")}, images)
    layer = params["representation"]
    features = np.tanh(before.features @ layer["kernel"] + layer["bias"])
    output = vit.forward(B, config, params, images)
    np.testing.assert_allclose(output.features, features, rtol=0, atol=1e-12)
    assert params["head"]["kernel"].shape == (5, 3)
    np.testing.assert_allclose(output.logits, features @ params["head"]["kernel"] + params["head"]["bias"], atol=1e-12)
