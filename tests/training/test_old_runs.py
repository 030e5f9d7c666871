"""Runs of version 0.1, kept as files, can still be read, evaluated and resumed.

Each folder of `runs_0_1` has the configuration of a run of two steps, its log, and its checkpoint after the first step.
They are of an early 0.1, whose configurations name the options of every router, but for "late", which is of its end.
"""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec import cli
from moespec.training.configuration import configfile
from moespec.training.loop import checkpoint, config_compatibility
from moespec.training.loop.runlog import read_log

RUNS = sorted(path for path in (Path(__file__).parent / "runs_0_1").iterdir() if path.is_dir())


@pytest.fixture(params=RUNS, ids=lambda run: run.name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run that was stopped after its first step."""
    pytest.importorskip(request.param.name.partition("_")[0])
    return Path(shutil.copytree(request.param, tmp_path / "run"))


def test_it_is_evaluated(run: Path, said: Any) -> None:
    assert "step 1 of 2" in said(["evaluate", str(run)])


NOISY = {"torch_softmax_token_choice", "torch_sparse_mlp"}
"""Runs with gating noise, which an early 0.1 drew by another generator."""


def test_it_goes_on_as_it_did(run: Path, request: Any, said: Any, monkeypatch: Any) -> None:
    """The second step gives the losses and metrics that version 0.1 logged; a run with noise is refused by name.

    Routing metrics of evaluation see the images that fill the last batch, so that is as large as it was in 0.1.
    """
    monkeypatch.setattr(
        "moespec.training.objectives.classification.evaluation_size", lambda sizes, model, batch, images: batch
    )
    if request.node.callspec.params["run"].name in NOISY:
        for by, more in (("0.1, since it records none", {}), ("7.1", {"version": "7.1"})):
            checkpoint.amend(newest := run / "checkpoints/00000001", checkpoint.read_record(newest) | more)
            error = said(["train", "--run", str(run), "--resume"], 2)
            assert "the gating noise of this run was not drawn by threefry2x32-20" in error
            assert f"resume with the moespec version that started it ({by})" in error
        return
    logged = [read_log(run, kind)[-1] for kind in ("train", "evaluation")]
    assert cli.main(["train", "--run", str(run), "--resume"]) == 0
    again = [read_log(run, kind)[-1] for kind in ("train", "evaluation")]
    for old, new in zip(logged, again, strict=True):
        assert new.keys() - old.keys() <= {"top5", "balanced_accuracy", "largest_class"}, "all that is new since"
        assert old.keys() <= new.keys()
        for name in ("cross_entropy", "loss", "grad_norm", "learning_rate", "accuracy"):
            if name in old:
                np.testing.assert_allclose(new[name], old[name], rtol=1e-5, err_msg=name)
        assert old["moe"].keys() == new["moe"].keys()
        for block, metrics in old["moe"].items():
            for name, value in metrics.items():
                np.testing.assert_allclose(new["moe"][block][name], value, rtol=1e-4, err_msg=f"{block} {name}")


def test_a_run_that_is_older_than_an_option_evaluates_as_it_did(tmp_path: Path) -> None:
    """Of `batch_expert_choice`, whose `eval_take` was "above" before there was the option."""
    now = configfile.with_model(configfile.digits(), None, "batch_expert_choice")
    (tmp_path / "config.toml").write_text(configfile.dump(now).replace('eval_take = "largest"\n', ""))
    then, recorded = configfile.read(tmp_path / "config.toml"), tomllib.loads((tmp_path / "config.toml").read_text())
    assert not config_compatibility.changes(recorded, then)
    assert config_compatibility.changes(recorded, now) == {"model.router_options.eval_take": ("above", "largest")}
