"""The text tower: what it shares with the ViT, its routers, and texts that do not fit."""

import numpy as np
import pytest
from of_models import drawn

import moespec.backends.numpy as B
from moespec.models import layers, text, transformer, vit
from moespec.models.random_keys import of_step
from moespec.spec.errors import ConfigError, ShapeError

IDS = np.array([[4, 0, 4, 1], [2, 2, 5, 5]], np.int32)
MOE = {"moe": "last_1", "experts": 3}


def tiny(**fields):
    small = {"vocabulary": 6, "length": 4, "width": 8, "depth": 2, "hidden": 12, "heads": 2}
    return text.TextConfig(**{**small, **fields})


def params_of(config):
    return B.from_numpy(drawn(text.init(config)), "float64")


DROPPING = {"pool": "gap", "qk_norm": True, "dropout": 0.3, "stochastic_depth": 0.5}


@pytest.mark.parametrize("fields", [DROPPING, {"pool": "map", **MOE}, {**MOE, "pool": "gap", "router": "switch"}])
def test_a_text_is_an_image_whose_pixels_have_a_channel_for_each_id(fields):
    config = tiny(**fields)
    image = {"image_size": 2, "patch_size": 1, "channels": 6, "classes": 0, "width": 8, "depth": 2, "hidden": 12}
    params, random = params_of(config), of_step(2, seed=3, step=1)
    params["embedding"] |= {"kernel": params["embedding"]["table"][None, None], "bias": np.zeros(8)}
    pixels = np.eye(6)[IDS].reshape(2, 2, 2, 6)
    options = {"random": random, "train": True}
    expected = vit.forward(B, vit.VitConfig(**image, heads=2, **fields), params, pixels, **options)
    output = text.forward(B, config, params, IDS, **options)
    np.testing.assert_allclose(output.features, expected.features, rtol=0, atol=1e-12)
    assert output.logits is None
    assert len(output.routings) == len(text.moe_layers(config, 2)) == ("moe" in fields)


def test_the_last_token_and_the_projection():
    config, plain = (tiny(projection=width) for width in (5, 0))
    params = params_of(config)
    p = params["projection"]
    before = text.forward(B, plain, params, IDS).features
    features = text.forward(B, config, params, IDS).features
    np.testing.assert_allclose(features, before @ p["kernel"] + p["bias"], atol=1e-12)
    # Without blocks that mix tokens, the last token alone is seen.
    for block in params["blocks"].values():
        block["attention"]["out"]["kernel"] = 0 * block["attention"]["out"]["kernel"]
    other = IDS.copy()
    other[:, 0] = 3
    one, two = (text.forward(B, config, params, ids).features for ids in (IDS, other))
    np.testing.assert_array_equal(one, two)


def test_a_hash_is_of_the_ids():
    config = tiny(**MOE, router="hash", group_texts=2)
    params = text.init(config)
    (routing,) = text.forward(B, config, params, IDS).routings
    experts = routing.dense().dispatch[0].any(axis=2).argmax(axis=1)
    assert experts.tolist() == params["blocks"]["1"]["moe"]["router"]["tables"][0][IDS].ravel().tolist()


def test_a_causal_tower_does_not_see_what_follows():
    config = tiny(causal=True)
    params, other = params_of(config), np.array([[4, 0, 4, 3], [2, 2, 1, 5]], np.int32)
    run = layers.Forward(B, config, params, IDS, text.moe_layers)
    embedded = (B.embedding(ids, params["embedding"]["table"]) for ids in (IDS, other))
    one, two = (transformer.blocks(run, params, x, causal=True) for x in embedded)
    same = np.isclose(one, two, rtol=0, atol=1e-12).all(axis=2)
    assert same.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_gradients_of_a_table_on_a_gpu_are_those_of_a_scatter():
    embedding = pytest.importorskip("moespec.backends.jax.embeddings")
    random = np.random.default_rng(0)
    ids, rows = random.choice([0, 1, 3, 6], 40).astype(np.int32), random.normal(size=(40, 3)).astype(np.float32)
    one, other = (np.asarray(f(8, rows, ids)) for f in (embedding._sums_by_scan, embedding._sums_by_scatter))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert not one[[2, 4, 5, 7]].any()


def test_sizes_and_counts():
    config = text.named("text_b", vocabulary=32_000, length=16, projection=768)
    blocks = vit.parameter_count(vit.named("vit_b16", classes=0)) - 768 * (768 + 1 + 196)  # and the last norm
    assert text.parameter_count(config) == blocks + 32_000 * 768 + 16 * 768 + 768 * 769
    assert text.init(text.named("text_tiny"))["embedding"]["table"].std() == pytest.approx(1 / 8, rel=0.02)
    with pytest.raises(ConfigError, match=r"name='text_b16': expected one of text_tiny, .*, text_l"):
        text.named("text_b16")


def test_texts_that_do_not_fit():
    config = tiny(**MOE, group_texts=2)
    params = params_of(config)
    with pytest.raises(ShapeError, match=r"ids: expected shape \(N, 4\), got \(2, 3\)"):
        text.forward(B, config, params, IDS[:, :3])
    with pytest.raises(ShapeError, match="ids: 1 texts cannot be split into groups of group_texts=2"):
        text.forward(B, config, params, IDS[:1])
