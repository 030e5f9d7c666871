"""Towers of images and texts as an objective: what it computes, what its runs keep, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from moespec import cli, spec
from moespec.backends import numpy as B
from moespec.models import text, vit
from moespec.training.configuration.config import Config, LitConfig, ModelConfig
from moespec.training.loop.runlog import read_log
from moespec.training.objectives.table import extra_params, objective_of

COLOURS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200), "yellow": (200, 200, 0)}
SIZE = ("--model.image-size", "8", "--model.patch-size", "4")
MODEL = (
    *("--model.depth", "1", "--model.width", "16", "--model.hidden", "16", "--model.heads", "2"),
    *("--model.moe", "last_1", "--model.experts", "2"),
)
LENGTH = ("--training.steps", "6", "--training.batch", "8", "--training.log-every", "1", "--schedule.warmup", "1")
OFTEN = ("--training.evaluate-every", "3", "--training.checkpoint-every", "2", "--training.keep", "9")
TEXT = ("--text.depth", "1", "--text.width", "16", "--text.hidden", "16", "--text.heads", "2", "--text.length", "12")
LAST = Path("checkpoints", "00000006", "arrays.safetensors")
FEATURES = "features.safetensors"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of four colours, by name, in classes and with captions."""
    folder = tmp_path_factory.mktemp("pairs")
    for part, count in (("train", 6), ("val", 2)):
        for name, colour in COLOURS.items():
            for number in range(count):
                file = folder / part / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), tuple(value + number for value in colour)).save(file)
                file.with_suffix(".txt").write_text(f"{name} {number}")
    prompts = {"classes": sorted(COLOURS), "prompts": ["{}", "{} 1"]}
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return folder


def flags(pairs: Path, run: Path, *more: str) -> list[str]:
    where = ["--backend", "torch", "--data", "pairs", "--data.path", str(pairs), "--run", str(run)]
    return ["--objective", "lit", *where, *LENGTH, *OFTEN, *TEXT, *more]


@pytest.fixture(scope="module")
def image_tower(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that told the colours apart, with experts."""
    run = tmp_path_factory.mktemp("tower") / "run"
    words = ["--backend", "torch", "--data", "folder", "--data.path", str(pairs), "--run", str(run), *SIZE, *MODEL]
    assert cli.main(["train", *words, "--training.steps", "2", "--training.batch", "8", "--schedule.warmup", "0"]) == 0
    return run


@pytest.fixture(scope="module")
def locked(pairs: Path, image_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("locked") / "run"
    own = run.parent / "own.toml"
    named = f'kind = "zero_shot"\ndata = "folder"\npath = "{pairs}"\nprompts = "{pairs / "prompts.json"}"\n'
    own.write_text(f'[evaluation.near]\nkind = "retrieval"\n[evaluation.named]\n{named}')
    assert cli.main(["finetune", str(image_tower), *flags(pairs, run, "--config", str(own))]) == 0
    return run


def test_features_of_a_locked_tower_are_kept_and_checked(locked: Path, tmp_path: Path, runs: Any, said: Any) -> None:
    again = runs.stopped(locked, tmp_path / "again", step=2)
    (again / FEATURES).write_bytes((locked / FEATURES).read_bytes())
    assert cli.main(["train", "--run", str(again), "--resume"]) == 0
    assert (again / LAST).read_bytes() == (locked / LAST).read_bytes()
    assert runs.contrastive(again) == runs.contrastive(locked)
    other = runs.stopped(locked, tmp_path / "other", step=2)
    content = bytearray((locked / FEATURES).read_bytes())
    content[-3] ^= 1
    (other / FEATURES).write_bytes(content)
    assert f"{FEATURES}: damaged or edited: its checksum does" in said(["train", "--run", str(other), "--resume"], 2)
    arrays = load_file(locked / FEATURES) | {"validation": 2 * load_file(locked / FEATURES)["validation"]}
    save_file(arrays, other / FEATURES)
    wrong = said(["train", "--run", str(other), "--resume"], 2)
    assert f"{FEATURES}: the image tower or the images have changed" in wrong
    (other / FEATURES).unlink()
    assert cli.main(["train", "--run", str(other), "--resume"]) == 0
    assert (other / FEATURES).read_bytes() == (locked / FEATURES).read_bytes()


def test_evaluations_with_texts(locked: Path, said: Any) -> None:
    shown = said(["evaluate", str(locked)])
    assert "validation recall at 1 (images and texts) " in shown
    assert "near: image_to_text: recall_1 " in shown
    assert "named: accuracy " in shown
    assert (locked / "report.html").exists()
    last = read_log(locked, "evaluation")[-1]
    assert last["accuracy"] == (last["image_to_text"]["recall_1"] + last["text_to_image"]["recall_1"]) / 2


def test_an_augmented_locked_tower_sees_each_image_anew(pairs: Path, image_tower: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cli.main(["finetune", str(image_tower), *flags(pairs, run, "--data.flip")]) == 0
    assert not (run / FEATURES).exists()


def test_both_towers_are_trained_and_backends_agree(pairs: Path, tmp_path: Path, runs: Any) -> None:
    experts = ("--text.moe", "last_1", "--text.experts", "2", "--text.router", "noisy_top_k")
    both = ("--lit.no-locked", "--lit.loss", "sigmoid", *SIZE, *MODEL, *experts)
    assert cli.main(["train", *flags(pairs, tmp_path / "torch", *both)]) == 0
    pytest.importorskip("jax")
    again = runs.stopped(tmp_path / "torch", tmp_path / "jax", step=4)
    assert cli.main(["train", "--run", str(again), "--resume", "--backend", "jax"]) == 0
    np.testing.assert_allclose(runs.contrastive(again), runs.contrastive(tmp_path / "torch"), rtol=1e-4)
    assert "0_text" in read_log(again, "train")[-1]["moe"]


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_loss_by_hand(kind: Any) -> None:
    small: Any = {"width": 8, "depth": 1, "heads": 2, "hidden": 8}
    tower = {**small, "length": 6, "projection": 8}
    section = LitConfig(locked=False, loss=kind, scale=3.0, bias=-2.0)
    config = Config(objective="lit", text=ModelConfig("text_tiny", **tower), lit=section)
    model = vit.named("vit_tiny", classes=0, patch_size=4, **small)
    params = B.from_numpy({**vit.init(model, 1), **extra_params(config, model)})
    images = np.random.default_rng(0).standard_normal((4, 8, 8, 1))
    ids = np.random.default_rng(1).integers(0, 257, (4, 6), np.int32)
    batch = {"image": {"images": images}, "text": {"ids": ids}}
    total, _ = objective_of(config).make_loss(B, config, model)(params, batch)
    read = text.forward(B, text.named("text_tiny", **tower), params["text"], ids).features
    pair, scale = (vit.forward(B, model, params, images).features, read), np.float32(np.log(3.0))
    expected = spec.contrastive_loss(*pair, scale) if kind == "softmax" else spec.sigmoid_loss(*pair, scale, -2.0)
    assert total == pytest.approx(expected, rel=1e-12)


REFUSED = [
    ("", "lit.locked=True requires init, since a locked image tower is not trained"),
    ("--init {tower} --model.stochastic-depth 0.1", "model.stochastic_depth=0.1: expected 0 for a locked tower"),
    ("--init {tower} --optimizer.rates norm/=0.5", "the rate of norm must be 0, since lit.locked is set"),
    ("--lit.no-locked --text.length 4", "text.length=4 tokens including the end token, as have 24 of 24"),
    ("--lit.no-locked --text.vocabulary 256", "text.vocabulary=256: expected at least the tokenizer's 257 ids"),
    ("--lit.no-locked --text.projection 5", "text.projection=5: expected 16, the image tower's width"),
    ("--lit.no-locked --lit.tokenizer no.json", "lit.tokenizer='no.json': not a tokenizer file"),
    ("--lit.no-locked --text.name vit_tiny", "text.name='vit_tiny': expected a text model, one of text_tiny"),
    ("--lit.no-locked --training.batch 25", "training.batch=25: expected at most 24 training images"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_an_error_before_anything_is_written(
    words: str, message: str, pairs: Path, image_tower: Path, tmp_path: Path, said: Any
) -> None:
    options = [*SIZE, *MODEL, *words.format(tower=image_tower).split()]
    assert message in said(["train", *flags(pairs, tmp_path / "run", *options)], 2)
    assert not (tmp_path / "run").exists()
