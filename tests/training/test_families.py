"""Models of every family are trained, go on from a checkpoint, are evaluated and drawn, by the commands for all."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moespec import cli, models
from moespec.models import families, list_models
from moespec.spec.errors import ConfigError
from moespec.training.loop.runlog import read_log

SHORT = (
    *("--model.patch-size", "4", "--model.width", "12", "--model.depth", "2", "--model.hidden", "8"),
    *("--model.token-hidden", "8", "--schedule.warmup", "2", "--schedule.peak", "1e-2", "--training.steps", "6"),
    *("--training.batch", "16", "--training.evaluate-every", "6", "--training.checkpoint-every", "3"),
    *("--training.keep", "9", "--training.log-every", "1"),
)
SPARSE = (
    *("--model.moe", "last_1", "--model.sparse-tokens", "8", "--model.sparse-width", "6", "--model.token-experts", "2"),
    *("--model.sparse-token-hidden", "4", "--model.experts", "2", "--model.sparse-hidden", "4"),
)
MODELS = {"mixer_tiny": SHORT, "sparse_mlp_tiny": (*SHORT, *SPARSE)}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_goes_on_with_the_other_backend(name: str, tmp_path: Path, capsys: Any, said: Any) -> None:
    for backend in ("jax", "torch"):
        pytest.importorskip(backend)
    run = str(tmp_path / "run")
    flags = ["train", "--model", name, "--run", run, "--backend", "jax", *MODELS[name]]
    assert cli.main(flags) == 0
    trained = read_log(Path(run), "train")
    assert all(np.isfinite(line["cross_entropy"]) for line in trained)
    page = (Path(run) / "report.html").read_text()
    assert name in page
    assert ("router importance_score" in page) == (name == "sparse_mlp_tiny")
    shown = said(["evaluate", run])
    assert ("block 1_tokens: coverage" in shown) == (name == "sparse_mlp_tiny")
    if name == "sparse_mlp_tiny":
        last = read_log(Path(run), "evaluation")[-1]["moe"]
        assert set(last) == {"1_tokens", "1_channels"}
        assert last["1_tokens"]["dropped"] >= 0.09, "a tenth of the channels is removed, in evaluation too"
    image = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)).save(image)
    assert cli.main(["inspect", run, "--image", str(image), "--out", str(tmp_path / "routing.png")]) == 0
    layers = {"mixer_tiny": 0, "sparse_mlp_tiny": 2}[name]
    assert f"{layers} MoE layers, predicted" in capsys.readouterr().out
    whole = trained[-1]["loss"]
    shutil.rmtree(Path(run, "checkpoints/00000006"))
    Path(run, "report.html").unlink()
    assert cli.main(["train", "--run", run, "--resume", "--backend", "torch"]) == 0
    assert json.loads(Path(run, "checkpoints/00000006/state.json").read_text())["backend"] == "torch"
    assert read_log(Path(run), "train")[-1]["loss"] == pytest.approx(whole, rel=1e-4)


def test_names() -> None:
    assert {"vit_tiny", "mixer_b16", "sparse_mlp_l"} <= set(list_models())
    configs = [families.of_name(name).named(name) for name in list_models()]
    assert len(set(configs)) == len(list_models())
    for name, config in zip(list_models(), configs, strict=True):
        assert name in families.family(config).NAMES
    for name in ("resnet50", "vit_x16", "vit_b", "vit_b0", "vit_b16_", "mixer_b0", "sparse_mlp_s16"):
        with pytest.raises(ConfigError, match=f"name='{name}'"):
            models.create(name)
    assert families.of_name("vit_ti28").named("vit_ti28", image_size=56).sequence == 2 * 2
    with pytest.raises(ConfigError, match="experts=2: the model 'mixer_b16' has no such field"):
        models.create("mixer_b16", experts=2)


WRONG: tuple[dict[str, Any], ...] = (
    *({"patch_size": None}, {"patch_size": np.int8(-3)}, {"router_options": {1: 2}}, {"name": None}, {"moe": b"x"}),
)


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_create_names_what_is_wrong(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=re.escape("{}={!r}".format(*list(fields.items())[-1]))):
        models.create(**{"name": "vit_tiny", "moe": "last_half", "experts": 2, **fields})
    assert type(models.create("vit_tiny", patch_size=np.int8(4)).config.patch_size) is int


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("mixer", {"depth": 0}, "depth=0"),
    ("mixer", {"patch_size": 3}, "patch_size=3 does not divide image_size=8"),
    ("mixer", {"dropout": 1.0}, "dropout: expected "),
    ("mixer", {"stochastic_depth": math.nan}, "stochastic_depth: expected "),
    ("sparse_mlp", {"experts": -1}, "experts=-1"),
    ("sparse_mlp", {"group_size": -1}, "group_size=-1"),
    ("sparse_mlp", {"token_experts": 3, "token_choices": 4}, "token_choices=4 exceeds token_experts=3"),
    ("sparse_mlp", {"router": "soft_moe"}, "router='soft_moe': expected one of 'importance_score', 'softmax_token_choice'"),
    ("text", {"vocabulary": 0}, "vocabulary=0"),
    ("text", {"pool": "token"}, "pool='token'"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "fields", "message"), FAULTS)
def test_configurations_without_a_meaning(family: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        families.of_name(f"{family}_tiny").named(f"{family}_tiny", **fields)
