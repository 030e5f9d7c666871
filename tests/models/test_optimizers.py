"""Runs with each optimiser: stopped, gone on with to the same bits or on another backend; frozen parameters; the average."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import OPTIMIZERS
from moespec.models import cli
from moespec.models.families import family
from moespec.models.training import checkpoint
from moespec.models.training.config import Config
from moespec.models.training.resolve import model_config
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.runlog import read_log
from moespec.models.training.savestate import trained_params
from moespec.models.trees import flatten

FREE = {"adafactor": {"factored_from": 8}}


def configured(runs: Any, name: str, **around: Any) -> Config:
    optimizer = OptimizerConfig(name, weight_decay=0.1, clip=1.0, **FREE.get(name, {}), **around)  # type: ignore[arg-type]
    training = replace(runs.config.training, steps=4, checkpoint_every=2, evaluate_every=2)
    return replace(runs.config, optimizer=optimizer, training=training)


def arrays(run: Path, step: int) -> dict[str, Any]:
    config = RunDirectory(run).config()
    assert config is not None
    model = model_config(config.model)
    state = checkpoint.read(run / "checkpoints" / f"{step:08d}", family(model).parameter_shapes(model)).state
    return flatten({name: tree for name, tree in state.items() if name != "step"})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stopped_run_goes_on(runs: Any, name: str, tmp_path: Path) -> None:
    """To the same bits; and, begun with torch, with JAX to the same numbers but for rounding."""
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    config = configured(runs, name, ema=0.5, rates="embedding=0, head/=2")
    whole, again, other = (tmp_path / part for part in ("whole", "again", "other"))
    runs.train(whole, "torch", config)
    for run, backend in ((again, "torch"), (other, "jax")):
        runs.stopped(whole, run, step=2)
        runs.train(run, backend, config)
    expected = arrays(whole, 4)
    assert {path.split("/")[0] for path in expected} == {"params", "ema", *config.optimizer.own.slots((16, 16))} | (
        {"nu"} if name == "adafactor" else set()
    )
    for path, value in expected.items():
        assert arrays(again, 4)[path].tobytes() == value.tobytes(), path
        scale = max(np.abs(value).max(), 1e-6)
        # Where a gradient is 0 but for rounding, Adam's first steps are not.
        wrong = np.abs(arrays(other, 4)[path] - value) > 1e-3 * scale
        assert wrong.mean() < 0.02 or path.split("/", 1)[1].endswith("key/bias"), path
    assert not any(path.split("/")[1] == "embedding" for path in expected if not path.startswith("params/"))


def test_frozen_parameters_keep_their_bits(runs: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = runs.train(run, "torch", configured(runs, "adamw", rates="head/=1, .*=0"))
    before = arrays(run, 2)
    for path, value in flatten(trained.params).items():
        assert (before[f"params/{path}"].tobytes() == value.tobytes()) == (not path.startswith("head/")), path
    assert {path for path in before if not path.startswith("params/")} == {
        f"{slot}/head/{key}" for slot in ("mu", "nu") for key in ("kernel", "bias")
    }


def test_the_average_is_evaluated_and_kept(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    flags = ["--optimizer.ema", "0.5", "--optimizer.rates", "positions=0", "--model.positions", "learned"]
    assert cli.main(["train", "--backend", "torch", "--run", str(run), *runs.flags, *flags]) == 0
    last = read_log(run, "evaluation")[-1]
    assert last["average"].keys() == {"accuracy", "loss"}
    assert last["average"]["loss"] != last["loss"]
    assert f"validation accuracy of the average {last['average']['accuracy']:.4f}" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run)]) == 0
    expected = f"of the average: validation accuracy {last['average']['accuracy']:.4f}, cross-entropy "
    assert f"{expected}{last['average']['loss']:.4f}" in capsys.readouterr().out
    directory = RunDirectory(run)
    config = directory.config()
    assert config is not None
    params, _ = trained_params(directory, config)
    average, _ = trained_params(directory, config, average=True)
    assert average["positions"].tobytes() == params["positions"].tobytes()
    assert average["head"]["kernel"].tobytes() == arrays(run, 12)["ema/head/kernel"].tobytes()
    assert np.any(average["head"]["kernel"] != params["head"]["kernel"])


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer.name", "sgd"],
        ["--optimizer.rates", "positions=0"],
        ["--optimizer.ema", "0.5"],
    ],
)
def test_an_optimiser_that_keeps_something_else_cannot_be_overridden(
    runs: Any, flags: list[str], tmp_path: Path, capsys: Any
) -> None:
    run = runs.broken("torch", tmp_path / "run", step=4)
    assert cli.main(["train", "--run", str(run), "--resume", "--override", *flags, "--model.positions", "learned"]) == 2
    capsys.readouterr()
    given = [flag.replace("positions", "head/bias") for flag in flags]
    assert cli.main(["train", "--run", str(run), "--resume", "--override", *given]) == 2
    assert "the checkpoint does not have what this optimizer keeps" in capsys.readouterr().err
    assert cli.main(["train", "--run", str(run), "--resume", "--override", "--optimizer.rates", "head/bias=2"]) == 0


def test_a_record_of_an_optimiser_that_there_is_not(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = Path(shutil.copytree(runs.whole("torch"), tmp_path / "run"))
    path = checkpoint.latest(run / "checkpoints")
    assert path is not None
    record = json.loads((path / "state.json").read_text())
    del record["sha256"]
    record["config"]["optimizer"]["name"] = "shampoo"
    checkpoint.amend(path, record)
    assert cli.main(["evaluate", str(run)]) == 2
    assert "config.optimizer: name='shampoo': expected one of adamw" in capsys.readouterr().err
