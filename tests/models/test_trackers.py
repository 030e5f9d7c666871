"""`--log`: trackers by name, of which stubs stand here, and a function of the user's own."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moespec.models import cli

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
def broken(config, run):
    raise OSError("no network")
"""
FUNCTIONS = (
    "init",
    "define_metric",
    "log",
    "finish",
    "set_experiment",
    "start_run",
    "log_params",
    "log_metrics",
    "end_run",
)


class Stub(ModuleType):
    """A tracker that notes what it is called with, and has no run called "gone"."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.spec_from_loader(name, None)
        self.calls: list[tuple[str, Any, Any]] = []
        functions = {function: self._noting(function) for function in FUNCTIONS}
        self.run = SimpleNamespace(id=f"{name}-1", info=SimpleNamespace(run_id=f"{name}-1"), **functions)
        vars(self).update(functions)

    def _noting(self, function: str) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            self.calls.append((function, values, named))
            if "gone" in named.values():
                raise RuntimeError("there is no such run")
            return self.run

        return call

    def of(self, function: str) -> list[Any]:
        return [named or values for name, values, named in self.calls if name == function]

    def logged(self) -> dict[str, list[int]]:
        """The steps at which each number was logged."""
        steps: dict[str, list[int]] = {}
        for function, values, named in self.calls:
            for tag in values[0] if function in ("log", "log_metrics") else ():
                steps.setdefault(tag, []).append(named.get("step", values[0].get("step")))
        return steps


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Stub]:
    (tmp_path / "own_hooks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_hooks", raising=False)
    made = {name: Stub(name) for name in ("wandb", "mlflow", "trackio")}
    for name, stub in made.items():
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
    assert json.loads((run / "trackers.json").read_text()) == {
        "wandb": "wandb-1",
        "mlflow": "mlflow-1",
        "trackio": "run-5",
    }
    for stub in stubs.values():
        steps = stub.logged()
        assert (steps["train/loss"], steps["evaluation/accuracy"]) == ([9, 10, 11, 12], [12])
        assert {"train/images_per_second", "train/moe/1/load/0"} <= steps.keys()
        assert stub.calls[-1][0] in ("finish", "end_run")
    assert stubs["wandb"].of("init")[0]["id"] == "wandb-1"
    assert stubs["mlflow"].of("start_run") == [
        {"run_id": "gone", "run_name": None},
        {"run_id": None, "run_name": "run"},
    ]
    assert sum(len(values) for (values,) in stubs["mlflow"].of("log_params")) > 100
    assert all(len(values) <= 100 for (values,) in stubs["mlflow"].of("log_params"))
    assert (stubs["trackio"].of("init")[0]["name"], stubs["trackio"].of("init")[0]["resume"]) == ("run-5", "allow")
    own = sys.modules["own_hooks"].calls
    assert own == [(9, True, []), (10, True, []), (11, True, []), (12, True, ["evaluation"]), "closed"]


def test_a_new_run_has_a_new_run_of_the_tracker(runs, stubs, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    """Although the folder has what is left of one without a checkpoint."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "trackers.json").write_text('{"trackio": "run-5"}')
    flags = [*runs.flags, "--training.steps", "3", "--training.log-every", "2"]
    said(["train", "--backend", "torch", "--run", str(tmp_path / "run"), *flags, "--log", "trackio"])
    (how,) = stubs["trackio"].of("init")
    assert how["name"] != "run-5"
    assert (how["resume"], how["config"]["training"]["steps"]) == ("never", 3)
    assert stubs["trackio"].logged()["train/loss"] == [2, 3]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("wandbb", "log='wandbb': expected one of tensorboard, wandb, mlflow, trackio, or package.module:function"),
        ("wandb,", "log='': expected one of"),
        ("mlflow", "log='mlflow': mlflow is not installed. Install it: pip install 'moespec[mlflow]'"),
        ("own_hooks:absent", "log='own_hooks:absent': cannot be imported"),
        ("own_hooks:nothing", "log='own_hooks:nothing': returned None, expected a hook"),
        ("own_hooks:broken", "log='own_hooks:broken': OSError: no network"),
    ],
)
def test_what_cannot_log_is_said_before_a_step(
    log: str, message: str, runs, stubs, tmp_path, monkeypatch, capsys
) -> None:  # type: ignore[no-untyped-def]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mlflow" else find(name, *more)
    )
    monkeypatch.setattr("moespec.models.commandline.commands.train", lambda *arguments, **options: 1 / 0)
    words = ["train", "--backend", "numpy", "--run", str(tmp_path / "run"), *runs.flags, "--log", log]
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
