"""MoCo v3 as an objective: what it computes, what its runs keep, and what they refuse."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec import cli, spec
from moespec.backends import numpy as B
from moespec.models import vit
from moespec.training.configuration.config import Config, MocoConfig, ModelConfig, TrainingConfig
from moespec.training.data.datasets import load
from moespec.training.data.loader import training_batch, views_of_step
from moespec.training.data.options import DataConfig
from moespec.training.loop.resolve import resolve
from moespec.training.loop.runlog import read_log
from moespec.training.loop.train import Batches
from moespec.training.objectives.table import extra_params, objective_of
from moespec.training.weights.formats import Given, read

FLAGS = (
    *("--objective", "moco", "--moco.hidden", "8", "--moco.output", "4", "--moco.cosine", "--data.crop-padding", "1"),
    *("--router", "noisy_top_k"),
)
LAST = Path("checkpoints", "00000012", "arrays.safetensors")


@pytest.fixture(scope="module", params=["torch", pytest.param("jax", marks=pytest.mark.full)])
def whole(request: Any, runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip(request.param)
    run = tmp_path_factory.mktemp("moco") / request.param
    assert cli.main(["train", "--backend", request.param, "--run", str(run), *runs.flags, *FLAGS]) == 0
    return run


def test_a_run_goes_on_to_the_same_bits_and_with_another_backend(whole: Path, tmp_path: Path, runs: Any) -> None:
    again = runs.stopped(whole, tmp_path / "again", step=4)
    assert cli.main(["train", "--run", str(again), "--resume"]) == 0
    assert (again / LAST).read_bytes() == (whole / LAST).read_bytes()
    assert runs.contrastive(again) == runs.contrastive(whole)
    if whole.name == "torch":
        pytest.importorskip("jax")
        other = runs.stopped(whole, tmp_path / "other", step=4)
        assert cli.main(["train", "--run", str(other), "--resume", "--backend", "jax"]) == 0
        np.testing.assert_allclose(runs.contrastive(other), runs.contrastive(whole), rtol=1e-4)


def test_what_a_run_says_and_leaves_to_others(whole: Path, tmp_path: Path, said: Any) -> None:
    shown = said(["evaluate", str(whole), "--fewshot", "5"])
    assert re.search(r"validation nearest-neighbour accuracy 0\.\d{4}, spread 0\.\d{4}\n", shown)
    assert "few-shot: shots_5: accuracy" in shown
    assert {"accuracy", "spread"} < read_log(whole, "evaluation")[-1].keys()
    page = (whole / "report.html").read_text()
    assert "<figcaption>loss (contrastive" in page
    assert "Mistakes" not in page, "there is no head"
    assert read(whole, Given()).params.keys() == vit.parameter_shapes(read(whole, Given()).config).keys()
    tuned = ["--run", str(tmp_path / "tuned"), "--training.steps", "2", "--training.batch", "16"]
    assert cli.main(["finetune", str(whole), "--backend", whole.name, *tuned]) == 0
    assert "validation accuracy 0." in said(["evaluate", str(tmp_path / "tuned")])


def test_the_loss_by_hand() -> None:
    """Queries are of the parameters, keys of the average, whose router has no noise; each batch-normalised over its view."""
    config = Config(objective="moco", moco=MocoConfig(temperature=0.5, hidden=5, output=3))
    more: Any = {"classes": 0, "width": 8, "hidden": 8, "heads": 2, "depth": 1, "patch_size": 4}
    model = vit.named("vit_tiny", moe="last_1", experts=2, router="switch", **more)
    params, average = (B.from_numpy({**vit.init(model, seed), **extra_params(config, model)}) for seed in (1, 2))
    average["projector"] = {name: {**layer} for name, layer in average["projector"].items()}
    average["projector"]["0"]["kernel"] = 2 * average["projector"]["1"]["kernel"][:1].repeat(8, 0)
    views = np.random.default_rng(0).standard_normal((2, 4, 8, 8, 1))

    def mapped(layers: Any, x: Any) -> Any:
        for number in range(len(layers)):
            x = x @ layers[str(number)]["kernel"]
            x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
            if number < len(layers) - 1:
                x = np.maximum(x * layers[str(number)]["norm"]["scale"] + layers[str(number)]["norm"]["bias"], 0)
        return x

    def features(tree: Any, view: Any, **options: Any) -> Any:
        return mapped(tree["projector"], vit.forward(B, model, tree, view, **options).features)

    loss = objective_of(config).make_loss(B, config, model)
    batch = {name: {"images": view} for name, view in zip(("first", "second"), views, strict=True)}
    total, metrics = loss(params, batch, average)
    queries = [mapped(params["predictor"], features(params, view, train=True)) for view in views]
    keys = [features(average, view) for view in views]
    assert metrics["contrastive"] == pytest.approx(spec.moco_loss(*queries, *keys, temperature=0.5), rel=1e-12)
    outputs = [vit.forward(B, model, params, view, train=True) for view in views]
    auxiliary = sum(sum(output.losses.values()) for output in outputs) / 2
    assert total - metrics["contrastive"] == pytest.approx(auxiliary, rel=1e-9)
    assert auxiliary > 0


def test_views_are_of_the_same_images_and_drawn_apart() -> None:
    dataset, plain = load("digits", ""), DataConfig(crop_padding=2, flip=True)
    other = replace(plain, erase=1.0)
    made = views_of_step(dataset, {"first": plain, "second": other}, 64, 3, 5)
    alone = training_batch(dataset, plain, batch=64, seed=3, step=5)
    np.testing.assert_array_equal(made["first"]["images"], alone["images"])
    again = views_of_step(dataset, {"first": plain, "second": plain}, 64, 3, 5)
    assert not np.array_equal(again["first"]["images"], again["second"]["images"])
    part = views_of_step(dataset, {"first": plain, "second": other}, 64, 3, 5, rows=range(16, 48))
    np.testing.assert_array_equal(part["second"]["images"], made["second"]["images"][16:48])


def test_views_have_noise_of_their_own() -> None:
    model, dataset = ModelConfig(router="noisy_top_k", patch_size=4), load("digits", "")
    config = resolve(
        Config(objective="moco", data=DataConfig(flip=True), model=model, training=TrainingConfig(batch=4)),
        dataset,
        "numpy",
    )
    batch = Batches(B, config, dataset)(3)
    first, second = (batch[view]["random"] for view in ("first", "second"))
    assert not set(map(tuple, first.tolist())) & set(map(tuple, second.tolist()))


def test_a_head_cannot_be_evaluated(tmp_path: Path, said: Any) -> None:
    (tmp_path / "own.toml").write_text('objective = "moco"\n[data]\nflip = true\n[evaluation.real]\nevery = 2\n')
    words = ["train", "--config", str(tmp_path / "own.toml"), "--backend", "torch", "--training.steps", "2"]
    assert "evaluation.real.kind='head': the model has no head" in said([*words, "--run", str(tmp_path / "run")], 2)
