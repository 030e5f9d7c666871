"""Losses, objectives, data sets, metrics, schedules and optimisers of the user's own: those of docs/own-objects.md, and wrong ones."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from moespec import cli
from moespec.training.configuration.config import Config, TrainingConfig
from moespec.training.loop import evaluations
from moespec.training.loop.runlog import read_log

PAGE = Path(__file__).parents[2] / "docs" / "own-objects.md"
NAMES = {
    **{"training.loss": "own_loss:focal", "objective": "own_objective:MODEST", "data.name": "own_data:rings"},
    **{"schedule.name": "own_schedule:stairs", "optimizer.name": "own_optimizer:LION", "kind": "own_metric:balanced"},
}
OWN = [word for option, name in NAMES.items() if option != "kind" for word in (f"--{option}", name)]
SPLITS = "lambda config, image_size: rings(config, 8).with_splits(lambda _, part: array_split({}))"
WRONG = [
    ("training.loss", "lambda B, logits, targets: B.mean(logits)", "for three images, expected a "),
    ("training.loss", "lambda B, logits, targets: np.zeros(len(logits))", "a torch array of 3 finite numbers"),
    ("training.loss", "lambda B, logits, targets: B.sum(logits, -1) * np.nan", "training.loss='wrong:f': returned array([nan"),
    ("objective", "focal", "objective='wrong:f': expected the name of an Objective, got <function focal"),
    ("data.name", "lambda config, image_size: None", "data.name='wrong:f': returned NoneType, expected moespec."),
    ("data.name", SPLITS.format("part.read(np.arange(2)), np.array([0, np.nan])"), "nan]): expected 2 integers, one for"),
    ("data.name", SPLITS.format("part.read(np.arange(2)), np.array([0, 0.5])"), "expected 2 integers, one for each image"),
    ("data.name", SPLITS.format("part.read(np.arange(2)), np.array([0, np.inf])"), "inf]): expected 2 integers, one for"),
    ("data.name", SPLITS.format("part.read(np.arange(2)), np.zeros(3)"), "expected 2 integers, one for each image"),
    ("data.name", "lambda config, image_size: replace(rings(config, 8), classes='aab')", "classes='aab': expected distinct names"),
    ("data.name", "sys.exit()", "data.name='wrong:f': cannot be imported (SystemExit: , at "),
    ("schedule.name", "type('Odd', (), {'__repr__': 3})()", "expected the name of a function, got <Odd instance at "),
    ("data.name", SPLITS.format("part.read(np.arange(2))[0], np.zeros(8)"), "image 0 is uint8 (1, 8, 1); expected (images,)"),
    ("schedule.name", "lambda peak, *, total, warmup: lambda step: 'fast'", "the rate at step 0 is 'fast', expected a"),
    ("schedule.name", "lambda peak, *, total, warmup: lambda step: -peak", "the rate at step 0 is -0.01, expected"),
    ("optimizer.name", "focal", "optimizer.name='wrong:f': expected the name of an Optimizer"),
    ("optimizer.name", "Optimizer(lambda xp, p, g, kept, n: (g, kept), ('row',))", "cannot be imported (ConfigError: slots="),
    ("kind", "lambda rows, labels: {'each': rows}", "evaluation.fair.kind='wrong:f': returned {'each': array("),
    ("schedule.end", "", "schedule.end=0.5 has no effect here: schedule.name is 'own_schedule:stairs'"),
    ("optimizer.b1", "", "optimizer.b1=0.5: the optimizer 'own_optimizer:LION' does not have this option; it has none"),
]  # fmt: skip


@pytest.fixture(scope="module")
def own(runs, tmp_path_factory):
    folder, code = tmp_path_factory.mktemp("parts"), re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text())
    for name in NAMES.values():
        (folder / f"{name.partition(':')[0]}.py").write_text("\n".join(code))
    (folder / "fair.toml").write_text('[evaluation.fair]\nkind = "own_metric:balanced"\nevery = 6\n')

    def run(backend):
        pytest.importorskip(backend)
        if not (made := folder / backend).exists():
            words = [*runs.flags, *OWN, "--config", str(folder / "fair.toml"), "--optimizer.ema", "0.9"]
            assert cli.main(["train", "--run", str(made), *words, "--backend", backend]) == 0
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield run


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_backends_train_alike_and_go_on_to_the_same_bits(backend, runs, own, tmp_path):
    whole, again = own(backend), runs.stopped(own(backend), tmp_path / "again", step=4)
    assert cli.main(["train", "--run", str(again), "--resume", "--trust", ",".join(NAMES.values())]) == 0
    first, second = (one / "checkpoints/00000012/arrays.safetensors" for one in (whole, again))
    assert first.read_bytes() == second.read_bytes()
    assert "0.1 entropy" in (whole / "report.html").read_text()
    for kind, name in (("train", "penalised"), ("evaluation", "loss"), ("evaluation/fair", "worst_class")):
        assert read_log(whole, kind)[-1][name] == pytest.approx(read_log(own("torch"), kind)[-1][name], rel=1e-3)


@pytest.mark.parametrize(("option", "code", "message"), WRONG)
def test_wrong_ones_are_one_error(option, code, message, runs, own, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    (tmp_path / "wrong.py").write_text(
        f"import sys\nfrom own_data import *\nfrom dataclasses import replace\n\nf = {code or None}\n"
    )
    (tmp_path / "x.toml").write_text('[evaluation.fair]\nkind = "wrong:f"\n' if option == "kind" else "")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("wrong", None)
    given = [] if option == "kind" else [f"--{option}", "wrong:f" if code else "0.5"]
    words = [*runs.flags, *OWN, "--config", str(tmp_path / "x.toml"), "--backend", "torch", *given]
    assert cli.main(["train", "--run", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert (error.count("\n"), (tmp_path / "run").exists()) == (1, False)


@pytest.mark.parametrize("command", ["evaluate RUN", "train --resume --run RUN"])
@pytest.mark.parametrize("option", NAMES)
def test_what_a_run_names_is_not_imported(option, command, runs, own, tmp_path, monkeypatch, capsys):
    run, name = runs.stopped(own("torch"), tmp_path / "run", step=4), NAMES[option]
    monkeypatch.delitem(sys.modules, module := name.partition(":")[0], raising=False)
    others = ",".join(each for each in NAMES.values() if each != name)
    code = cli.main([*command.replace("RUN", str(run)).split(), "--trust", others])
    asked = f"add --trust {name}" in capsys.readouterr().err
    assert (code == 2) == asked == ((command, option) != ("evaluate RUN", "schedule.name"))
    assert module not in sys.modules


def test_a_metric_that_writes_changes_no_labels(own, monkeypatch):
    importlib.import_module("own_loss")
    monkeypatch.setattr("own_loss.f", lambda rows, labels: labels.fill(7) or {"zero": 0.0}, raising=False)
    assert evaluations._measured("kind", "own_loss:f", None, labels := np.arange(3)) == {"zero": 0.0}
    assert labels.tolist() == [0, 1, 2]


def test_objects_become_names(own):
    module = importlib.import_module("own_loss")
    config = Config(objective=module.MODEST, training=TrainingConfig(loss=module.focal))
    assert (config.objective, config.training.loss) == ("own_loss:MODEST", "own_loss:focal")


def test_the_measure_of_an_objective(runs, own, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    own("torch")
    module, found = (
        importlib.import_module("own_objective"),
        importlib.import_module("moespec.training.objectives.table"),
    )
    monkeypatch.setattr(module, "MODEST", module.CLASSIFICATION._replace(views=1))
    config = Config(objective="own_objective:MODEST", training=TrainingConfig(loss="own_loss:focal"))
    assert found.objective_of(config).measure == ("own_loss", "focal")
    monkeypatch.setattr(module, "MODEST", module.CLASSIFICATION._replace(measure=("gone", "x")))
    words = [*runs.flags, "--objective", "own_objective:MODEST", "--backend", "torch"]
    assert cli.main(["train", "--run", str(tmp_path / "run"), *words]) == 2
    assert "its measure is 'gone', but the loss returns only cross_entropy, " in capsys.readouterr().err
