"""`--log`: trackers by name, of which stubs stand here, and a function of the user's own."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from moespec import cli
from moespec.models.files import read_record

OWN = """
calls = []
def make(config, run):
    def hook(after):
        calls.append((after.done, after.logs, list(after.evaluations)))
        if after.done > 9:
            raise OSError("no room left")
    hook.close = lambda: calls.append("closed")
    return hook
def nothing(config, run):
    return None
"""


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The packages, of which MLflow does not have the run that it is asked for."""
    (tmp_path / "own_hooks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_hooks", raising=False)
    made = SimpleNamespace(wandb=MagicMock(), mlflow=MagicMock(), trackio=MagicMock())
    made.wandb.init.return_value.id = "wandb-1"
    new = SimpleNamespace(info=SimpleNamespace(run_id="mlflow-1"))
    made.mlflow.start_run.side_effect = [RuntimeError("there is no such run"), new]
    for name, stub in vars(made).items():
        stub.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, stub)
    return made


def test_a_run_that_goes_on_is_logged_as_one(runs, stubs, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    """Steps and evaluations, by trackers and the user's own hook, whose error is said once and ends nothing."""
    run = runs.broken("torch", tmp_path / "run", step=8)
    (run / "trackers.json").write_text('{"wandb": "wandb-1", "mlflow": "gone", "trackio": "run-5"}')
    out = said(["train", "--run", str(run), "--resume", "--log", "wandb,mlflow,trackio,own_hooks:make"])
    assert f"{run}: finished, 12 steps" in out
    assert out.count("warning: log='own_hooks:make': OSError: no room left; the run goes on") == 1
    assert "log='mlflow': RuntimeError: there is no such run; it cannot go on with its run gone" in out
    ids = read_record(run / "trackers.json")
    assert ids == {"wandb": "wandb-1", "mlflow": "mlflow-1", "trackio": "run-5"}
    assert stubs.wandb.init.call_args.kwargs["id"] == "wandb-1"
    assert [call.kwargs["run_id"] for call in stubs.mlflow.start_run.call_args_list] == ["gone", None]
    started = stubs.trackio.init.call_args.kwargs
    assert (started["name"], started["resume"], started["config"]["training"]["steps"]) == ("run-5", "allow", 12)
    for log in (stubs.wandb.init.return_value.log, stubs.mlflow.log_metrics, stubs.trackio.log):
        lines = {call.kwargs.get("step", call.args[0].get("step")): call.args[0] for call in log.call_args_list}
        assert list(lines) == [9, 10, 11, 12]
        assert {"train/loss", "train/images_per_second", "train/moe/1/load/0"} <= lines[9].keys()
        assert [step for step, line in lines.items() if "evaluation/accuracy" in line] == [12]
    for close in (stubs.wandb.init.return_value.finish, stubs.mlflow.end_run, stubs.trackio.finish):
        close.assert_called_once_with()
    own = sys.modules["own_hooks"].calls
    assert own == [(9, True, []), (10, True, []), (11, True, []), (12, True, ["evaluation"]), "closed"]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("wandbb", "log='wandbb': expected one of tensorboard, wandb, mlflow, trackio, or package.module:function"),
        ("trackio", "log='trackio': trackio is not installed. Install it: pip install 'moespec[trackio]'"),
        ("mlflow", "log='mlflow': RuntimeError: there is no such run"),
        ("own_hooks:nothing", "log='own_hooks:nothing': returned None, expected a hook"),
    ],
)
def test_what_cannot_log_is_said_before_a_step(
    log: str, message: str, runs, stubs, tmp_path, monkeypatch, capsys
) -> None:  # type: ignore[no-untyped-def]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "trackio" else find(name, *more)
    )
    monkeypatch.setattr("moespec.training.commands.train.train", lambda *arguments, **options: 1 / 0)
    words = ["train", "--backend", "numpy", "--run", str(tmp_path / "run"), *runs.flags, "--log", log]
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
