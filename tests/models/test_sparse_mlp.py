"""Sparse-MLP: counts, the whole network against its formulas written once more by hand, what is dropped, and its limits."""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
from of_models import drawn, images_for

import moespec.backends.numpy as B
from moespec import spec
from moespec.models import counts, mixer, sparse_mlp
from moespec.models.pytrees import flatten
from moespec.models.random_keys import of_step
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
    """The 79 million of Table 5 for the last four do not go with the 130 of Sparse-L: what two sparse blocks add (SL-9)."""

    def millions(size, moe):
        return sparse_mlp.parameter_count(sparse_mlp.named(f"sparse_mlp_{size}", moe=moe, classes=0)) / 1e6

    mixer_b, two, four = (millions("b", moe) for moe in ("none", "last_2", "last_4"))
    assert (round(mixer_b, 1), round(two, 1), round(four, 1)) == (59.1, 70.0, 80.8)
    rest = millions("l", "last_6") - 3 * (two - mixer_b)  # of Sparse-L, whatever the rescale sub-layers are
    assert [round((cut - rest) / 3, 1) for cut in (130, 131)] == [10.7, 11.1]
    assert round((80 - mixer_b) / 2, 1) == 10.4
    first = sparse_mlp.named("sparse_mlp_b", moe="first_2")
    assert sparse_mlp.parameter_count(first) == 70_735_016


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mlp(x, p, expert=slice(None)):
    return gelu(x @ p["w1"][expert] + p["b1"][expert]) @ p["w2"][expert] + p["b2"][expert]


def norm(x, p):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def rescaled(x, p):
    """One image, (tokens, channels)."""
    x = (x.T @ p["token_kernel"] + p["token_bias"]).T if "token_kernel" in p else x
    return x @ p["channel_kernel"] + p["channel_bias"] if "channel_kernel" in p else x


def mixture(items, p, *, choices, drop, cut):
    """Items one after the other: who is served, by whom, and with what weight."""
    scores = np.exp(items @ p["router"]["kernel"])
    scores /= scores.sum(axis=1, keepdims=True)
    count, experts = scores.shape
    line = sorted(range(count), key=lambda i: -max(scores[i])) if cut else list(range(count))
    line = line[: count - math.floor(drop * count)] if cut else line
    capacity = math.ceil(len(line) * choices * 1.05 / experts)
    result, room = np.zeros_like(items), [capacity] * experts
    for choice in range(choices):
        for i in line:
            expert = int(np.argsort(-scores[i])[choice])
            if room[expert]:
                room[expert] -= 1
                result[i] += scores[i, expert] * mlp(items[i], p["experts"], expert)
    return result


def by_hand(config, params, images):
    """The features of the network from the equations of the paper, of which there is no public implementation."""
    size = config.patch_size
    rows = config.image_size // size
    cut = [images[:, r * size : (r + 1) * size, c * size : (c + 1) * size] for r in range(rows) for c in range(rows)]
    stem = params["embedding"]
    patches = np.stack([patch.reshape(len(images), -1) for patch in cut], axis=1)
    x = patches @ stem["kernel"].reshape(-1, config.width) + stem["bias"]
    for number in range(config.depth):
        p = params["blocks"][str(number)]
        if "token_mlp" in p:
            x = x + np.stack([mlp(norm(one, p["norm1"]).T, p["token_mlp"]).T for one in x])
            x = x + mlp(norm(x, p["norm2"]), p["channel_mlp"])
            continue
        x = np.stack([rescaled(one, p.get("rescale1", {})) for one in x])
        channels = np.concatenate([norm(one, p["norm1"]).T for one in x])  # of all images, each S' wide
        options = {"drop": config.router_options.get("drop", 0.1), "cut": config.router == "importance_score"}
        mixed = mixture(channels, p["token_moe"], choices=config.token_choices, **options)
        x = x + np.stack([part.T for part in np.split(mixed, len(x))])
        tokens = norm(x, p["norm2"])
        if config.experts:
            options["cut"] = config.channel_router == "importance_score"
            mixed = mixture(np.concatenate(tokens), p["channel_moe"], choices=config.choices, **options)
            x = x + mixed.reshape(x.shape)
        else:
            x = x + mlp(tokens, p["channel_mlp"])
        x = np.stack([rescaled(one, p.get("rescale2", {})) for one in x])
    return norm(x, params["norm"]).mean(axis=1)


CHANGES = (
    *({}, {"experts": 0, "sparse_width": 6}, {"moe": "last_2", "token_choices": 2}, {"moe": "every_2", "depth": 3}),
    *({"moe": "0,2", "depth": 3}, {"channel_router": "importance_score"}, {"sparse_tokens": 4}),
    *({"sparse_tokens": 4, "sparse_width": 6}, {"choices": 1, "router_options": {"drop": 0.3}}),
    *(
        {"router_options": {"drop": 0.5}},
        {"token_experts": 1, "experts": 1, "choices": 1, "router_options": {"drop": 0.0}},
    ),
)


@pytest.mark.parametrize("router", ["importance_score", "softmax_token_choice"])
@pytest.mark.parametrize("fields", CHANGES)
def test_the_network_is_that_of_the_equations(router, fields):
    if router != "importance_score":  # which alone has `drop`
        fields = {name: value for name, value in fields.items() if name != "router_options"}
    config = tiny(router=router, **fields)
    params, images = drawn(sparse_mlp.init(config), reach=0.5), images_for(config, 4)
    output = sparse_mlp.forward(B, config, params, images)
    np.testing.assert_allclose(output.features, by_hand(config, params, images), rtol=1e-11, atol=1e-11)
    logits = output.features @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_array_equal(output.logits, logits)


@pytest.mark.parametrize("experts", [0, 3])
def test_stochastic_depth_drops_what_the_experts_make_of_an_image(experts):
    """Where experts have room for all, as where what they make is multiplied by 0, or by 2, the inverse of the chance."""
    roomy = {"router": "softmax_token_choice", "router_options": {"capacity_factor": 3.0}}
    plain = tiny(experts=experts, **roomy)
    params, images = B.from_numpy(drawn(sparse_mlp.init(plain))), images_for(plain, 12)
    random = of_step(12, seed=1, step=2)
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


def test_errors_of_the_batch():
    config = tiny(group_size=10, group_images=2)
    params = sparse_mlp.init(config)
    with pytest.raises(ShapeError, match="cannot be split into groups of group_size=10"):
        sparse_mlp.forward(B, config, params, images_for(config, 3))
    with pytest.raises(ShapeError, match="cannot be split into groups of group_images=2"):
        sparse_mlp.forward(B, dataclasses.replace(config, group_size=0), params, images_for(config, 3))
    with pytest.raises(ConfigError, match="noise: expected 2 arrays, one for each MoE layer with noise, got 1"):
        sparse_mlp.forward(B, config, params, images_for(config, 2), noise=[np.zeros((1, 10, 3))])


OWN = {
    **{"router": "softmax_token_choice", "token_experts": 2, "sparse_token_hidden": 2, "expert_activation": "swiglu"},
    **{"experts": 0, "shared_experts": 2, "shared_gate": True, "expert_bias": False},
}


def test_a_block_with_experts_of_its_own():
    """Block 1 has fewer, narrower, gated experts, a shared expert, and a dense MLP over channels. Block 0 has the model's experts."""
    config = tiny(moe="last_2", expert_activation="relu2", block={"1": OWN})
    layers = {layer.name: layer for layer in sparse_mlp.moe_layers(config, 4)}
    assert list(layers) == ["0_tokens", "0_channels", "1_tokens"]
    assert layers["0_channels"].experts.activation == "relu2"
    assert layers["1_tokens"].router == "softmax_token_choice"
    assert (layers["1_tokens"].experts.hidden, layers["1_tokens"].experts.shared) == (2, 4)
    shapes = sparse_mlp.parameter_shapes(config)["blocks"]
    assert shapes["1"]["token_moe"]["experts"] == {"w1": (2, 8, 2), "w2": (2, 2, 8), "w3": (2, 8, 2)}
    assert shapes["1"]["token_moe"]["shared"] == {"w1": (8, 4), "w2": (4, 8), "w3": (8, 4), "gate": (8,)}
    assert shapes["0"]["channel_moe"]["experts"].keys() == {"w1", "b1", "w2", "b2"}
    assert "channel_mlp" in shapes["1"]
    assert sum(math.prod(shape) for shape in flatten(shapes["1"]["token_moe"]).values()) == 8 * 2 + 2 * 48 + 3 * 32 + 8
    params, images = sparse_mlp.init(config), images_for(config, 2)
    other = sparse_mlp.init(dataclasses.replace(config, block={}))
    assert np.array_equal(
        params["blocks"]["0"]["token_moe"]["experts"]["w1"], other["blocks"]["0"]["token_moe"]["experts"]["w1"]
    )
    assert sparse_mlp.forward(B, config, drawn(params), images).logits.shape == (2, 3)
    assert counts.flops(config, 2)["experts"] < counts.flops(dataclasses.replace(config, block={}), 2)["experts"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": {"0": OWN}}, r"block.0: expected one of the MoE blocks, '1' \(moe='last_1'\)"),
        ({"block": {"1": {"sparse_width": 3}}}, "block.1.sparse_width=3: a block does not have this option"),
        ({"block": {"1": {"token_experts": 1, "token_choices": 2}}}, "block.1.token_choices=2 exceeds token_experts=1"),
        ({"shared_gate": True}, "shared_gate=True: expected shared_experts=1 or more"),
        ({"copy_experts": 3}, "copy_experts=3: at least one of token_experts=3 must be an MLP"),
    ],
)
def test_experts_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**fields)
