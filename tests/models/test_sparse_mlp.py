"""Sparse-MLP: counts, the whole network against its formulas written once more by hand, and its limits."""

import dataclasses
import math

import numpy as np
import pytest

import moespec.backends.numpy as B
from moespec import spec
from moespec.models import layers, mixer, sparse_mlp
from moespec.models.draws import Draws, of_step
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Noise


def tiny(**fields):
    small = {
        **{"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 6, "depth": 2},
        **{"token_hidden": 5, "hidden": 7, "moe": "last_1", "sparse_tokens": 8, "sparse_width": 5},
        **{"token_experts": 3, "sparse_token_hidden": 4, "experts": 3, "sparse_hidden": 6},
    }
    return sparse_mlp.SparseMlpConfig(**{**small, **fields})


def flat(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, (*path, key))
        else:
            yield "/".join((*path, key)), value


def parameters(config, seed=0):
    """Every parameter drawn, so that no bias, scale or head is at a value that hides it."""
    generator = np.random.default_rng(seed)

    def draw(tree):
        return {
            name: draw(value) if isinstance(value, dict) else (name == "scale") + 0.5 * generator.standard_normal(value)
            for name, value in tree.items()
        }

    return draw(sparse_mlp.parameter_shapes(config))


def images_for(config, count, seed=0):
    shape = (count, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(seed).standard_normal(shape)


# ------------------------------------------------------------------------------------------------ parameter counts


def formula(s, c, depth, sparse, ds, dc, s2, c2, ns, ds2, nc, dc2, classes):
    """The count of section 15.7: stem, dense and sparse blocks, final norm, head."""

    def mlp(a, h):
        return 2 * a * h + a + h

    dense = 4 * c + mlp(s, ds) + mlp(c, dc)
    channel = nc * mlp(c2, dc2) + c2 * nc if nc else mlp(c2, dc2)
    rescale = sum(2 * old * new + old + new for old, new in ((s, s2), (c, c2)) if new != old)
    block = 4 * c2 + ns * mlp(s2, ds2) + s2 * ns + channel + rescale
    return 768 * c + c + (depth - sparse) * dense + sparse * block + 2 * c + classes * (c + 1)


@pytest.mark.parametrize(
    ("name", "sizes", "no_head", "imagenet"),
    [
        ("sparse_mlp_s", (196, 512, 8, 2, 256, 2048, 392, 512, 4, 512, 0, 2048), 21_343_792, 21_856_792),
        ("sparse_mlp_b", (196, 768, 12, 2, 384, 3072, 392, 384, 8, 768, 4, 1536), 69_966_016, 70_735_016),
        ("sparse_mlp_l", (196, 768, 14, 6, 384, 3072, 392, 384, 16, 768, 4, 1536), 130_404_200, 131_173_200),
    ],
)
def test_counts(name, sizes, no_head, imagenet):
    counts = [sparse_mlp.parameter_count(sparse_mlp.named(name, classes=classes)) for classes in (0, 1000)]
    assert counts == [formula(*sizes, classes) for classes in (0, 1000)] == [no_head, imagenet]


def test_counts_are_those_of_the_paper():
    counts = [sparse_mlp.parameter_count(sparse_mlp.named(f"sparse_mlp_{size}", classes=0)) for size in "sbl"]
    assert [count // 10**6 for count in counts] == [21, 69, 130]
    four = sparse_mlp.named("sparse_mlp_b", moe="last_4", classes=0)
    assert round(sparse_mlp.parameter_count(four) / 1e6, 1) == 80.8
    first = sparse_mlp.named("sparse_mlp_b", moe="first_2", classes=0)
    assert sparse_mlp.parameter_count(first) == counts[1]
    none = sparse_mlp.named("sparse_mlp_b", moe="none")
    assert sparse_mlp.parameter_count(none) == mixer.parameter_count(mixer.named("mixer_b16"))


@pytest.mark.parametrize("fields", [{}, {"experts": 0}, {"sparse_width": 6}, {"moe": "last_2"}, {"moe": "none"}])
def test_shapes_are_those_of_the_initial_parameters(fields):
    config = tiny(**fields)
    params, shapes = dict(flat(sparse_mlp.init(config))), dict(flat(sparse_mlp.parameter_shapes(config)))
    assert {name: value.shape for name, value in params.items()} == shapes
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}
    assert sum(value.size for value in params.values()) == sparse_mlp.parameter_count(config)


# ------------------------------------------------------------------------------------------- the network by hand


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


def by_hand(config, params, images, kept=None):
    """The features of the network from the equations of the paper; `kept` (images, 2 depth) multiplies each residual branch."""
    kept = np.ones((len(images), 2 * config.depth)) if kept is None else kept
    factors = kept.T[:, :, None, None]
    size = config.patch_size
    rows = config.image_size // size
    cut = [images[:, r * size : (r + 1) * size, c * size : (c + 1) * size] for r in range(rows) for c in range(rows)]
    stem = params["embedding"]
    patches = np.stack([patch.reshape(len(images), -1) for patch in cut], axis=1)
    x = patches @ stem["kernel"].reshape(-1, config.width) + stem["bias"]
    for number in range(config.depth):
        p, (first, second) = params["blocks"][str(number)], factors[2 * number : 2 * number + 2]
        if "token_mlp" in p:
            x = x + first * np.stack([mlp(norm(one, p["norm1"]).T, p["token_mlp"]).T for one in x])
            x = x + second * mlp(norm(x, p["norm2"]), p["channel_mlp"])
            continue
        x = np.stack([rescaled(one, p.get("rescale1", {})) for one in x])
        channels = np.concatenate([norm(one, p["norm1"]).T for one in x])  # of all images, each S' wide
        options = {"drop": config.router_options.get("drop", 0.1), "cut": config.router == "importance_score"}
        mixed = mixture(channels, p["token_moe"], choices=config.token_choices, **options)
        x = x + first * np.stack([part.T for part in np.split(mixed, len(x))])
        tokens = norm(x, p["norm2"])
        if config.experts:
            options["cut"] = config.channel_router == "importance_score"
            mixed = mixture(np.concatenate(tokens), p["channel_moe"], choices=config.choices, **options)
            x = x + second * mixed.reshape(x.shape)
        else:
            x = x + second * mlp(tokens, p["channel_mlp"])
        x = np.stack([rescaled(one, p.get("rescale2", {})) for one in x])
    return norm(x, params["norm"]).mean(axis=1)


@pytest.mark.parametrize("router", ["importance_score", "softmax_token_choice"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"experts": 0, "sparse_width": 6},
        {"moe": "last_2", "token_choices": 2},
        {"choices": 1, "router_options": {"drop": 0.3}},
        {"moe": "every_2", "depth": 3},
        {"moe": "0,2", "depth": 3},
        {"channel_router": "importance_score"},
        {"sparse_tokens": 4},
        {"sparse_tokens": 4, "sparse_width": 6},
    ],
)
def test_the_network_is_that_of_the_equations(router, fields):
    if router != "importance_score":  # which alone has `drop`
        fields = {name: value for name, value in fields.items() if name != "router_options"}
    config = tiny(router=router, **fields)
    params, images = parameters(config), images_for(config, 4)
    output = sparse_mlp.forward(B, config, params, images)
    np.testing.assert_allclose(output.features, by_hand(config, params, images), rtol=1e-11, atol=1e-11)
    logits = output.features @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_array_equal(output.logits, logits)


@pytest.mark.parametrize("experts", [0, 3])
def test_stochastic_depth_drops_what_the_experts_make_of_an_image(experts):
    """Its channels and tokens are routed all the same; what is kept of a branch is divided by the chance of that."""
    config = tiny(depth=3, moe="1", experts=experts, stochastic_depth=0.5)
    params, images, random = parameters(config), images_for(config, 12), of_step(12, seed=1, step=2)
    draws = spec.unit_interval(spec.random_words([1, 0, 2, 0], stream=2 * 2**20, rows=12, columns=6))
    rates = np.repeat([0.0, 0.25, 0.5], 2)
    kept = (draws >= rates) / (1 - rates)
    assert all(len(set(column)) == 2 for column in kept.T[2:]), (
        "each branch is dropped for some images, kept for others"
    )
    found = sparse_mlp.forward(B, config, params, images, random=random, train=True).features
    np.testing.assert_allclose(found, by_hand(config, params, images, kept), rtol=1e-11, atol=1e-11)


# -------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("router", ["importance_score", "softmax_token_choice"])
def test_one_expert_with_room_for_all_is_the_dense_block_between_the_rescales(router):
    """Its gate is 1."""
    options = {"drop": 0.0} if router == "importance_score" else {}
    config = tiny(depth=1, router=router, token_experts=1, experts=1, choices=1, router_options=options)
    params, images = parameters(config), images_for(config, 3)
    block = params["blocks"]["0"]
    first = {name: {key: value[0] for key, value in block[name]["experts"].items()} for name in moes(block)}
    inner = dataclasses.replace(config, moe="none", width=config.sparse_width)
    dense = {
        "norm1": block["norm1"],
        "token_mlp": first["token_moe"],
        "norm2": block["norm2"],
        "channel_mlp": first["channel_moe"],
    }
    x = B.rescale(B.patch_embed(images, **params["embedding"]), block["rescale1"])
    x = B.rescale(mixer.block(B, inner, dense, x, 0, Draws(B)), block["rescale2"])
    expected = spec.layer_norm(x, **params["norm"]).mean(axis=1)
    found = sparse_mlp.forward(B, config, params, images)
    np.testing.assert_allclose(found.features, expected, rtol=1e-12, atol=1e-12)


def moes(block):
    return [name for name in block if name.endswith("moe")]


def test_without_rescale_sub_layers_it_has_no_parameters_of_them():
    """Table 6, "w/o r_layers": Sparse-B at the sizes of the patches, S' = 196 and C' = 768."""
    config = sparse_mlp.named("sparse_mlp_b", sparse_tokens=196, sparse_width=768, classes=0)
    sparse = sparse_mlp.parameter_shapes(config)["blocks"]["11"]
    assert set(sparse) == {"norm1", "token_moe", "norm2", "channel_moe"}
    sizes = (196, 768, 12, 2, 384, 3072, 196, 768, 8, 768, 4, 1536)
    assert sparse_mlp.parameter_count(config) == formula(*sizes, 0)


def test_a_sparse_block_of_the_sizes_of_the_patches_is_a_mixer_block():
    """S' = S and C' = C: neither tokens nor channels are mapped."""
    config = tiny(sparse_tokens=4, sparse_width=6, token_experts=1, experts=0, sparse_token_hidden=5, sparse_hidden=7,
                  router_options={"drop": 0.0})  # fmt: skip
    params, images = parameters(config), images_for(config, 3)
    block = params["blocks"]["1"]
    expert = {key: value[0] for key, value in block["token_moe"]["experts"].items()}
    dense = {**params, "blocks": {**params["blocks"], "1": {**block, "token_mlp": expert}}}
    plain = mixer.MixerConfig(
        **{f.name: getattr(config, f.name) for f in dataclasses.fields(mixer.MixerConfig) if hasattr(config, f.name)},
    )
    expected = mixer.forward(B, plain, dense, images).logits
    np.testing.assert_allclose(sparse_mlp.forward(B, config, params, images).logits, expected, rtol=1e-12, atol=1e-12)


def test_without_sparse_blocks_it_is_a_mixer():
    config = tiny(moe="none")
    shared = [f.name for f in dataclasses.fields(mixer.MixerConfig) if hasattr(config, f.name)]
    plain = mixer.MixerConfig(**{name: getattr(config, name) for name in shared})
    params, images = sparse_mlp.init(config, 3), images_for(config, 2)
    assert dict(flat(params)).keys() == dict(flat(mixer.init(plain, 3))).keys()
    output = sparse_mlp.forward(B, config, B.from_numpy(params), images)
    np.testing.assert_array_equal(output.features, mixer.forward(B, plain, B.from_numpy(params), images).features)
    assert output.routings == []


def test_both_modes_agree_where_nothing_is_removed_and_there_is_room():
    room = {"capacity_factor": 8.0}
    options = {"importance_score": {"drop": 0.0, **room}, "softmax_token_choice": room}
    efficient, vanilla = (tiny(router=name, router_options=options[name]) for name in sparse_mlp.ROUTERS)
    params, images = parameters(efficient), images_for(efficient, 3)
    found = [sparse_mlp.forward(B, config, params, images).logits for config in (efficient, vanilla)]
    np.testing.assert_allclose(*found, rtol=1e-13, atol=1e-13)


def test_the_mixture_adds_nothing_to_removed_channels():
    config = tiny(router_options={"drop": 0.5, "capacity_factor": 8.0})
    layer = sparse_mlp.moe_layers(config, 4)[0]
    channels = np.random.default_rng(0).standard_normal((4, 5, 8))
    p = parameters(config)["blocks"]["1"]["token_moe"]
    mixed, output = layers.moe(B, p, channels, layer, config=config, noise=None, train=False)
    scores = spec.softmax_affinity(channels.reshape(20, 8) @ p["router"]["kernel"])
    left = spec.importance_score_order(scores, drop=0.5)
    assert sorted(left) == np.flatnonzero(mixed.reshape(20, 8).any(axis=1)).tolist()
    assert output.metrics["dropped"] == 0.5


def test_a_routing_group_is_the_batch_unless_it_is_split():
    images = images_for(tiny(), 4)
    changed = images.copy()
    changed[3] += 1
    for fields, is_seen in (({}, True), ({"group_size": 5, "group_images": 1}, False)):
        config = tiny(router_options={"drop": 0.5, "capacity_factor": 0.5}, **fields)
        params = parameters(config)
        before, after = (sparse_mlp.forward(B, config, params, x).features for x in (images, changed))
        assert np.array_equal(before[:3], after[:3]) is not is_seen


def test_layers_and_noise():
    config = tiny(moe="last_2")
    assert [layer.name for layer in sparse_mlp.moe_layers(config, 4)] == [
        "0_tokens",
        "0_channels",
        "1_tokens",
        "1_channels",
    ]
    assert sparse_mlp.moe_noise(config, 4) == [Noise((1, 20, 3)), Noise((1, 32, 3))] * 2
    split = tiny(group_size=10, group_images=2)
    assert sparse_mlp.moe_noise(split, 4) == [Noise((2, 10, 3)), Noise((2, 16, 3))]
    assert sparse_mlp.moe_noise(tiny(experts=0), 4) == [Noise((1, 20, 3))]
    params, images = parameters(config), images_for(config, 4)
    drawn = sparse_mlp.moe_noise(config, 4)
    noise = [np.random.default_rng(i).standard_normal(wanted.shape) for i, wanted in enumerate(drawn)]
    output = sparse_mlp.forward(B, config, params, images, noise=noise, train=True)
    assert sorted(output.losses) == ["importance", "load"]
    weights = [output.metrics[i]["importance_loss"] for i in range(4)]
    assert output.losses["importance"] == pytest.approx(0.005 * sum(weights))
    other = sparse_mlp.forward(B, config, params, images, noise=[*noise[:3], -noise[3]], train=True)
    for i in range(3):
        np.testing.assert_array_equal(output.routings[i].weight, other.routings[i].weight)
    assert not np.array_equal(output.routings[3].weight, other.routings[3].weight)


# -------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 0}, "depth=0"),
        ({"sparse_tokens": 0}, "sparse_tokens=0"),
        ({"token_experts": 0}, "token_experts=0"),
        ({"experts": -1}, "experts=-1"),
        ({"group_size": -1}, "group_size=-1"),
        ({"token_choices": 4}, "token_choices=4: there are token_experts=3"),
        ({"choices": 4}, "choices=4: there are experts=3"),
        ({"router": "soft_moe"}, "router='soft_moe': expected one of 'importance_score', 'softmax_token_choice'"),
        ({"moe": "last_3"}, "moe='last_3': only 2 such blocks"),
        ({"expert_init": "copied"}, "expert_init='copied'"),
        ({"router_options": {"choices": 2}}, r"router_options\.choices=2: importance_score does not have"),
        ({"router_options": {"top_k": 2}}, r"router_options\.top_k=2"),
    ],
)
def test_config_errors(fields, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**fields)


def test_names():
    configs = {sparse_mlp.named(name) for name in sparse_mlp.NAMES}
    assert len(configs) == len(sparse_mlp.NAMES)
    with pytest.raises(ConfigError, match="name='sparse_mlp_s16'"):
        sparse_mlp.named("sparse_mlp_s16")


def test_errors_of_the_batch():
    config = tiny(group_size=10, group_images=2)
    params = parameters(config)
    with pytest.raises(ShapeError, match="cannot be split into groups of group_size=10"):
        sparse_mlp.forward(B, config, params, images_for(config, 3))
    with pytest.raises(ShapeError, match="cannot be split into groups of group_images=2"):
        sparse_mlp.forward(B, dataclasses.replace(config, group_size=0), params, images_for(config, 3))
    with pytest.raises(ConfigError, match="noise has 1 arrays: expected one for each of the 2 MoE layers"):
        sparse_mlp.forward(B, config, params, images_for(config, 2), noise=[np.zeros((1, 10, 3))])
