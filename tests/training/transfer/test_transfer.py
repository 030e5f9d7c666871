"""Training from other weights: which parameters are taken, how they are made to fit, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
from of_models import drawn, images_for
from PIL import Image

import moespec.backends.numpy as B
from moespec import cli
from moespec.models import vit
from moespec.models.pytrees import flatten
from moespec.spec.errors import ConfigError
from moespec.training.configuration.config import Config
from moespec.training.data.options import DataConfig
from moespec.training.loop.resolve import model_config
from moespec.training.transfer.rules import transferred
from moespec.training.transfer.start import finetuned, model_of
from moespec.training.weights.formats import Given, read, write
from moespec.training.weights.record import Weights


def weights(seed=1, **fields) -> Weights:
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "width": 8, "depth": 2, "hidden": 12}
    config = vit.VitConfig(**{**sizes, "heads": 2, **fields})
    return Weights(config, drawn(vit.init(config, seed), seed), {})


def taken(source: Weights, config, **options):
    """What a model with `config` starts with, and its own initial values."""
    initial = vit.init(config, 9)
    return transferred(source, config, initial, **options), initial


def logits(config, params):
    return vit.forward(B, config, B.from_numpy(params), images_for(config, 3)).logits


MOE = {"moe": "last_1", "experts": 4}
SOFT = {"router": "soft_moe", "positions": "sincos2d", **MOE}


def test_a_head_for_other_classes_is_new():
    source = weights()
    result, initial = taken(source, replace(source.config, classes=5))
    assert result.new == ["head/kernel", "head/bias"]
    assert result.params["head"] is not initial["head"]
    np.testing.assert_array_equal(result.params["head"]["kernel"], initial["head"]["kernel"])
    headless, _ = taken(source, replace(source.config, classes=0))
    assert "head" not in headless.params
    added, _ = taken(weights(classes=0), source.config)
    assert added.new == ["head/kernel", "head/bias"]


def test_what_is_skipped_is_new():
    source = weights()
    result, initial = taken(source, source.config, skip="^head/|norm2/scale")
    assert result.new == ["blocks/0/norm2/scale", "blocks/1/norm2/scale", "head/kernel", "head/bias"]
    np.testing.assert_array_equal(result.params["head"]["kernel"], initial["head"]["kernel"])
    with pytest.raises(ConfigError, match=r"init_skip='\(': not a regular expression"):
        taken(source, source.config, skip="(")


@pytest.mark.parametrize(
    ("fields", "prefix"),
    [
        ({"pool": "gap"}, 0),
        ({"pool": "token"}, 1),
        ({"pool": "token", "registers": 2}, 3),
        ({"pool": "token", "registers": 2, "positions": "learned_patches"}, 0),
    ],
)
def test_positions_are_resized(fields, prefix):
    source = weights(**fields)
    result, _ = taken(source, replace(source.config, image_size=16))
    assert result.resized == ["positions"]
    before, after = np.float32(source.params["positions"]), result.params["positions"]
    assert after.shape == (1, 64 + prefix, 8)
    np.testing.assert_array_equal(after[:, :prefix], before[:, :prefix])
    expected = scipy.ndimage.zoom(before[0, prefix:].reshape(4, 4, 8), (2, 2, 1), order=1).reshape(64, 8)
    np.testing.assert_allclose(after[0, prefix:], expected, rtol=1e-6)


@pytest.mark.parametrize("side", [8, 16])
def test_registers_are_added(side):
    """Positions of the source are cut where its patches begin, which is elsewhere in the model."""
    source = weights(pool="token")
    result, initial = taken(source, replace(source.config, registers=3, image_size=side), skip="registers")
    before, after, fresh = source.params["positions"], result.params["positions"], initial["positions"]
    assert (result.new, result.resized) == (["registers"], ["positions"])
    np.testing.assert_array_equal(after[:, 0], np.float32(before[:, 0]))
    np.testing.assert_array_equal(after[:, 1:4], fresh[:, 1:4])
    np.testing.assert_allclose(after[0, [4, -1]], before[0, [1, -1]], rtol=1e-6)
    assert after.shape == (1, 4 + (side // 2) ** 2, 8)


def test_positions_of_another_kind():
    of_patches = weights(pool="token", positions="learned_patches")
    result, initial = taken(of_patches, replace(of_patches.config, positions="learned"))
    np.testing.assert_array_equal(result.params["positions"][:, 1:], np.float32(of_patches.params["positions"]))
    np.testing.assert_array_equal(result.params["positions"][:, 0], initial["positions"][:, 0])
    # Positions of a class token and 8 registers, and 16 patches: as many as of 25 patches alone.
    of_all = weights(pool="token", registers=8)
    with pytest.raises(ConfigError, match=r"positions has shape \(1, 25, 8\) with 9 before the patches, but"):
        taken(of_all, replace(of_all.config, positions="learned_patches", image_size=10))


@pytest.mark.parametrize(
    ("router", "options", "same"),
    [
        ("softmax_expert_choice", {"capacity_factor": 4.0}, True),
        ("gshard", {"capacity_factor": float("inf")}, True),
        ("softmax_token_choice", {"capacity_factor": float("inf"), "choices": 2, "normalize_selected": True}, True),
        ("softmax_token_choice", {"capacity_factor": float("inf")}, False),
        ("switch", {"capacity_factor": float("inf")}, False),
        ("soft_moe", {}, False),
    ],
)
def test_an_upcycled_model_computes_what_the_dense_one_did(router, options, same):
    """Where the weights of a token's experts sum to 1 and no token is dropped; the documentation names the routers."""
    source = weights()
    config = replace(source.config, **MOE, router=router, router_options=options)
    result, initial = taken(source, config)
    assert result.upcycled == [f"blocks/1/moe/experts/{name}" for name in ("w1", "b1", "w2", "b2")]
    assert all(name.startswith("blocks/1/moe/router/") for name in result.new)
    dense = np.float32(source.params["blocks"]["1"]["mlp"]["w1"])
    np.testing.assert_array_equal(result.params["blocks"]["1"]["moe"]["experts"]["w1"], [dense] * 4)
    router_params = flatten(result.params["blocks"]["1"]["moe"]["router"])
    for name, value in router_params.items():
        np.testing.assert_array_equal(value, flatten(initial["blocks"]["1"]["moe"]["router"])[name])
    error = np.abs(logits(config, result.params) - logits(source.config, source.params)).max()
    assert (error < 1e-5) == same


@pytest.mark.parametrize(
    ("of_source", "fields", "message"),
    [
        ({}, {"width": 16}, r"embedding/kernel has shape \(2, 2, 1, 8\) in the source, but \(2, 2, 1, 16\) in the model"),
        ({}, {"hidden": 24}, r"blocks/0/mlp/w1 has shape \(8, 12\) in the source, but \(8, 24\) in the model"),
        ({}, {"depth": 3}, r"blocks/2/norm1/scale \(8,\) is not in the source; --init-skip blocks/2/norm1/scale initializes it"),
        ({}, {"depth": 1}, r"blocks/1/attention/key/bias \(2, 4\) is unexpected"),
        ({}, {"positions": "sincos2d"}, r"positions \(1, 16, 8\) is unexpected"),
        (SOFT, {"moe": "none"}, r"blocks/1/mlp/w1 \(8, 12\) is not in the source"),
        (SOFT, {"image_size": 16}, r".*slots has shape \(8, 4, 4\) in the source, but \(8, 4, 16\) in the model"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(of_source, fields, message):
    """At another resolution options give as many more slots as there are more tokens, unless fine-tuning pins them."""
    source = weights(**of_source)
    with pytest.raises(ConfigError, match=f"init: {message}"):
        taken(source, replace(source.config, **fields))


@pytest.mark.parametrize(("kind", "tables"), [("position", True), ("patch_code", False)])
def test_tables_of_hash_layers_on_another_grid_are_new(kind, tables):
    source = weights(router="hash", token_ids=kind, codes=4, positions="sincos2d", **MOE)
    result, _ = taken(source, replace(source.config, image_size=16))
    assert ("blocks/1/moe/router/tables" in result.new) == tables


@pytest.mark.parametrize("fields", [{}, {"router": "soft_moe", "pool": "token", "representation": 4, **MOE}])
def test_the_model_of_weights_is_theirs(fields):
    source = weights(**fields)
    section = replace(model_of(source), image_size=8, channels=1, classes=3)
    assert vit.parameter_shapes(model_config(section)) == vit.parameter_shapes(source.config)
    same = {"router_options": {}, "experts": 0, "router": "soft_moe"}
    assert replace(model_config(section), **same, moe="none") == replace(source.config, **same, moe="none")


SHORT = (
    *("--schedule.warmup", "0", "--schedule.peak", "1e-12", "--training.steps", "1", "--training.batch", "4"),
    *("--training.evaluation-batch", "4", "--training.evaluate-every", "1", "--training.checkpoint-every", "1"),
    *("--data.crop-padding", "0", "--data.mixup", "0"),
)


def photos(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for split, count in (("train", 4), ("val", 2)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (20, 20), np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def test_train_starts_from_a_run(tmp_path, runs, said):
    run = runs.whole("torch")
    flags = [*runs.flags[: runs.flags.index("--schedule.warmup")], *("--backend", "torch"), *SHORT]
    assert f"init: {run}\nrun:" in said(["train", "--init", str(run), "--run", str(tmp_path / "on"), *flags])
    started, trained = (read(path, Given()).params for path in (tmp_path / "on", run))
    for name, value in flatten(started).items():
        np.testing.assert_allclose(value, flatten(trained)[name], rtol=0, atol=1e-10)
    assert f'init = "{run}"' in (tmp_path / "on/config.toml").read_text()
    skipped = ["train", "--init", str(run), "--init-skip", "^head/", "--run", str(tmp_path / "new"), *flags]
    assert "  new: head/kernel, head/bias\n" in said(skipped)
    assert np.abs(read(tmp_path / "new", Given()).params["head"]["kernel"]).max() < 1e-9
    said(["train", "--init", str(tmp_path / "nowhere"), "--run", str(tmp_path / "off"), *flags], 2)
    assert not (tmp_path / "off").exists()


def test_finetune_at_twice_the_resolution(tmp_path, said):
    """A model of 12 x 12 pixels goes on with photographs of 24 x 24: its slots stay, its head is new."""
    source = weights(router="soft_moe", channels=3, image_size=12, **MOE)
    write(tmp_path / "x.safetensors", source, "moespec")
    data = ("--data.name", "folder", "--data.path", str(photos(tmp_path / "photos")))
    given = ("finetune", str(tmp_path / "x.safetensors"), *data, "--backend", "torch", *SHORT)
    out = said([*given, "--model.image-size", "24", "--run", str(tmp_path / "run")])
    assert re.search(r"new: head/kernel, head/bias\n  resized: positions\n", out)
    found = read(tmp_path / "run", Given())
    assert (found.config.image_size, found.config.classes, found.config.width) == (24, 2, 8)
    slots = found.params["blocks"]["1"]["moe"]["router"]["slots"]
    np.testing.assert_allclose(slots, source.params["blocks"]["1"]["moe"]["router"]["slots"], atol=1e-6)
    said([*given, "--run", str(tmp_path / "same")])
    assert read(tmp_path / "same", Given()).config.image_size == 12


def test_finetune_keeps_the_data_of_its_run(tmp_path, runs, capsys, said):
    """With what is done to the images, their size and the evaluations, unless data are given; a file has none."""
    run = runs.broken("torch", tmp_path / "run", step=12)
    text = (run / "config.toml").read_text().replace("mixup = 0.5", "mixup = 0.25")
    (run / "config.toml").write_text(text + '[evaluation.near]\nkind = "neighbours"\n')
    kept, other = (finetuned(Config(), str(run), other_data=given) for given in (False, True))
    assert (kept.data.mixup, kept.model.image_size, list(kept.evaluation)) == (0.25, 8, ["near"])
    assert (kept.backend, other.backend) == ("torch", "torch")
    assert (other.data, other.model.image_size, other.evaluation) == (DataConfig(), None, {})
    for given, message in (((), "data: digits, evaluation near (from the run)\n"), (("--data", "digits"), "")):
        capsys.readouterr()
        wrong = ("--model.patch-size", "3", "--backend", "torch", "--run", str(tmp_path / "new"))
        assert cli.main(["finetune", str(run), *given, *wrong]) == 2
        assert capsys.readouterr().out == (message or "data: digits (from the run)\n")
    write(tmp_path / "x.safetensors", weights(), "moespec")
    wrong = said(["finetune", str(tmp_path / "x.safetensors"), "--run", str(tmp_path / "new")], 2)
    assert "x.safetensors is not a run, so its data is unknown; set --data and --data.path" in wrong
