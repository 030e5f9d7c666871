"""Losses, objectives, data sets, metrics, schedules and optimisers of the user's own: those of docs/own-objects.md, and wrong ones."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moespec import cli
from moespec.spec.errors import ConfigError
from moespec.training.configuration.config import Config, ScheduleConfig, TrainingConfig
from moespec.training.loop.runlog import read_log

PAGE = Path(__file__).parents[2] / "docs" / "own-objects.md"
NAMES = {
    **{"training.loss": "own_loss:focal", "objective": "own_objective:MODEST", "data.name": "own_data:rings"},
    **{"schedule.name": "own_schedule:stairs", "optimizer.name": "own_optimizer:LION", "kind": "own_metric:balanced"},
}
OWN = [word for option, name in NAMES.items() if option != "kind" for word in (f"--{option}", name)]
SPLITS = "lambda config, image_size: rings(config, 8).with_splits(lambda _, part: {})"
WRONG = [
    ("training.loss", "lambda B, logits, targets: B.mean(logits)", "returned np.float64(", "of three images, expected (3,)"),
    ("training.loss", "lambda B, logits, targets: B.sum(logits, -1) / B.sum(logits, -1) * np.nan", "array([nan, nan, nan])"),
    ("training.loss", "lambda B, logits, targets: 1 / 0", "training.loss='wrong:f': raised ZeroDivisionError: ", "wrong.py:3"),
    ("training.loss", "LION", "training.loss='wrong:f': expected the name of a function, got Optimizer("),
    ("objective", "focal", "objective='wrong:f': expected the name of a Objective, got <function focal"),
    ("data.name", "lambda config, image_size: None", "data.name='wrong:f': returned NoneType, expected moespec."),
    ("data.name", SPLITS.format("array_split(part.read(np.arange(2)), np.array([0, np.nan]))"), "training labels array"),
    ("data.name", SPLITS.format("array_split(part.read(np.arange(2)), np.array([0, 3]))"), "integers below 3"),
    ("data.name", SPLITS.format("array_split(part.read(np.arange(2))[0], np.zeros(2))"), "image 0: uint8 (1, 8, 1), exp"),
    ("schedule.name", "lambda peak, *, total, warmup: lambda step: 'fast'", "its rate of step 0 is 'fast', expected a"),
    ("schedule.name", "lambda peak, *, total, warmup: lambda step: -peak", "its rate of step 0 is -0.01, expected"),
    ("optimizer.name", "focal", "optimizer.name='wrong:f': expected the name of a Optimizer"),
    ("optimizer.name", "Optimizer(lambda xp, p, g, kept, n: (g, kept), ('row',))", "cannot be imported (ConfigError: slots="),
    ("kind", "lambda rows, labels: {'each': rows}", "evaluation.fair.kind='wrong:f': returned {'each': 'ndarray'}"),
    ("kind", "lambda rows, labels: {'step': 1}", "expected numbers by names other than kind and step"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("parts")
    for name in NAMES.values():
        code = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text())
        (folder / f"{name.partition(':')[0]}.py").write_text("\n".join(code))
    (folder / "fair.toml").write_text('[evaluation.fair]\nkind = "own_metric:balanced"\nevery = 6\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def trained(runs: Any, folder: Path, backend: str) -> Path:
    pytest.importorskip(backend)
    if not (run := folder / backend).exists():
        words = [*runs.flags, *OWN, "--config", str(folder / "fair.toml"), "--optimizer.ema", "0.9"]
        assert cli.main(["train", "--run", str(run), *words, "--backend", backend]) == 0
    return run


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_backends_train_alike_and_go_on_to_the_same_bits(runs: Any, folder: Path, tmp_path: Path, backend: str) -> None:
    run, again = trained(runs, folder, backend), tmp_path / "again"
    runs.stopped(run, again, step=4)
    assert cli.main(["train", "--run", str(again), "--resume", "--trust", ",".join(NAMES.values())]) == 0
    first, second = (one / "checkpoints/00000012/arrays.safetensors" for one in (run, again))
    assert first.read_bytes() == second.read_bytes()
    assert "0.1 entropy" in (run / "report.html").read_text()
    (last, fair), other = (
        (read_log(run, kind)[-1] for kind in ("train", "evaluation/fair")),
        trained(runs, folder, "torch"),
    )
    assert last["penalised"] == pytest.approx(read_log(other, "train")[-1]["penalised"], rel=1e-3)
    assert fair["worst_class"] == pytest.approx(read_log(other, "evaluation/fair")[-1]["worst_class"])


@pytest.mark.parametrize(("option", "code", "messages"), [(option, code, told) for option, code, *told in WRONG])
def test_wrong_ones_are_one_error(
    option: str, code: str, messages: list[str], runs: Any, folder: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "wrong.py").write_text(f"from own_data import *\n\nf = {code}\n")
    (tmp_path / "x.toml").write_text('[evaluation.fair]\nkind = "wrong:f"\n' if option == "kind" else "")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("wrong", None)
    given = [] if option == "kind" else [f"--{option}", "wrong:f"]
    words = [*runs.flags, *OWN, "--config", str(tmp_path / "x.toml"), "--backend", "torch", *given]
    assert cli.main(["train", "--run", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert not [message for message in messages if message not in error]
    assert (error.count("\n"), (tmp_path / "run").exists()) == (1, False)


@pytest.mark.parametrize("words", [("--schedule.end", "0.1"), ("--optimizer.b1", "0.5"), ("--data.resize", "0.5")])
def test_options_of_others_are_refused(words: tuple[str, str], runs: Any, folder: Path, capsys: Any) -> None:
    assert cli.main(["train", *runs.flags, *OWN, *words]) == 2
    assert words[0].rpartition(".")[2] in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate RUN", "train --resume --run RUN"])
@pytest.mark.parametrize("option", NAMES)
def test_what_a_run_names_is_not_imported(
    option: str, command: str, runs: Any, folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    run = runs.stopped(trained(runs, folder, "torch"), tmp_path / "run", step=4)
    name, others = NAMES[option], ",".join(each for each in NAMES.values() if each != NAMES[option])
    monkeypatch.delitem(sys.modules, module := name.partition(":")[0], raising=False)
    code = cli.main([*command.replace("RUN", str(run)).split(), "--trust", others])
    assert (code == 2) == (f"add --trust {name}" in capsys.readouterr().err)
    assert code == 2 or (command, option) == ("evaluate RUN", "schedule.name")
    assert module not in sys.modules


def test_a_study_compares_by_a_metric(runs: Any, folder: Path, tmp_path: Path, capsys: Any) -> None:
    entries = ["soft_moe", "focal: --training.loss own_loss:focal"]
    words = ["study", "--routers", *entries, "--out", str(tmp_path / "study"), *runs.flags]
    words += ["--config", str(folder / "fair.toml"), "--seeds", "1", "--backend", "torch", "--measure"]
    assert cli.main([*words, "fair/best_class"]) == 2
    assert "expected one of fair/balanced_accuracy, fair/worst_class" in capsys.readouterr().err
    assert cli.main([*words, "fair/worst_class"]) == 0
    assert "own_loss" in read_log(tmp_path / "study/runs/focal-seed0", "train")[-1]


def test_objects_become_names(folder: Path) -> None:
    module = importlib.import_module("own_loss")
    config = Config(objective=module.MODEST, training=TrainingConfig(loss=module.focal))
    assert (config.objective, config.training.loss) == ("own_loss:MODEST", "own_loss:focal")
    with pytest.raises(ConfigError, match=r"schedule\.name=.*expected an object that a module has under a name"):
        ScheduleConfig(lambda peak, **_: None)  # type: ignore[arg-type]
