"""`--log`: Weights & Biases, for which a stub stands here, and a function of the user's own."""

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

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
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    (tmp_path / "own_hooks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_hooks", raising=False)
    stub = MagicMock(__spec__=importlib.util.spec_from_loader("wandb", None))
    stub.init.return_value.id = "run-1"
    monkeypatch.setitem(sys.modules, "wandb", stub)
    return stub


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_goes_on_is_logged_as_one(runs, wandb, tmp_path: Path, said, gone: bool) -> None:  # type: ignore[no-untyped-def]
    """Steps and evaluations, also by the user's own hook, whose error is said once and ends nothing."""
    run = runs.broken("torch", tmp_path / "run", step=8)
    (run / "trackers.json").write_text('{"wandb": "gone", "mlflow": "x"}' if gone else '{"wandb": "run-1"}')
    if gone:
        wandb.init.side_effect = [RuntimeError("there is no such run"), wandb.init.return_value]
    out = said(["train", "--run", str(run), "--resume", "--log", "wandb,own_hooks:make"])
    assert f"{run}: finished, 12 steps" in out
    assert out.count("warning: log='own_hooks:make': OSError: no room left; the run continues") == 1
    assert ("log='wandb': RuntimeError: there is no such run; cannot resume the wandb run gone" in out) == gone
    assert read_record(run / "trackers.json")["wandb"] == "run-1"
    asked = [(call.kwargs["id"], call.kwargs["resume"]) for call in wandb.init.call_args_list]
    assert asked == ([("gone", "allow"), (None, None)] if gone else [("run-1", "allow")])
    lines = {call.args[0]["step"]: call.args[0] for call in wandb.init.return_value.log.call_args_list}
    assert list(lines) == [9, 10, 11, 12]
    assert {"train/loss", "train/images_per_second", "train/moe/1/load/0"} <= lines[9].keys()
    assert [step for step, line in lines.items() if "evaluation/accuracy" in line] == [12]
    wandb.init.return_value.finish.assert_called_once_with()
    own = sys.modules["own_hooks"].calls
    assert own == [(9, True, []), (10, True, []), (11, True, []), (12, True, ["evaluation"]), "closed"]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("wandbb", "log='wandbb': expected one of tensorboard, wandb, or package.module:function"),
        ("tensorboard", "log='tensorboard': tensorboard is not installed. Install it: pip install 'moespec[data]'"),
        ("wandb", "log='wandb': RuntimeError: no account"),
        ("own_hooks:nothing", "log='own_hooks:nothing': returned None, expected a hook"),
    ],
)
def test_what_cannot_log_is_said_before_a_step(
    log: str, message: str, runs, wandb, tmp_path, monkeypatch, said
) -> None:  # type: ignore[no-untyped-def]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tensorboard" else find(name, *more)
    )
    wandb.init.side_effect = RuntimeError("no account")
    monkeypatch.setattr("moespec.training.commands.train.train", lambda *arguments, **options: 1 / 0)
    words = ["train", "--backend", "numpy", "--run", str(tmp_path / "run"), *runs.flags, "--log", log]
    assert message in said(words, 2)
