"""What a run was told, it is: another configuration between two sittings is noticed, and changed only on purpose."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from moespec.models import cli
from moespec.models.training import checkpoint
from moespec.models.training.resolve import load_data, resolve
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.runlog import read_log
from moespec.models.training.unchanged import FREE
from moespec.spec.errors import SpecError


def edit(run: Path, old: str, new: str) -> None:
    """Changes a line of config.toml."""
    file = run / "config.toml"
    text, count = re.subn(rf"(?m)^{re.escape(old)}$", new, file.read_text())
    assert count == 1
    file.write_text(text)


def record(run: Path) -> dict[str, Any]:
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    return checkpoint.read_record(newest)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weight_decay = 0.3", "weight_decay = 0.1", r"optimizer\.weight_decay is 0\.3 there, 0\.1 here"),
        ("peak = 0.01", "peak = 0.02", r"schedule\.peak is 0\.01 there, 0\.02 here"),
        ('gelu = "tanh"', 'gelu = "erf"', r"model\.gelu is 'tanh' there, 'erf' here"),
        ("mixup = 0.5", "mixup = 0.0", r"data\.mixup is 0\.5 there, 0\.0 here"),
        (
            'norm_form = "paper"',
            'norm_form = "rsqrt"',
            r"model\.router_options\.norm_form is 'paper' there, 'rsqrt' here",
        ),
        ("seed = 0", "seed = 1", r"training\.seed is 0 there, 1 here"),
        ("steps = 12", "", r"training\.steps is 12 there, 1500 here"),
        ("keep = 9", "keep = 9\ncheckpoint_evry = 4", r"unknown key 'training\.checkpoint_evry'"),
    ],
)
def test_an_edited_config_toml(runs, tmp_path: Path, capsys, old: str, new: str, message: str) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    edit(run, old, new)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert cli.main(["train", "--run", str(run), "--resume"]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert {path: path.read_bytes() for path in files} == files


def test_classes_that_have_other_names(runs, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """As when a folder of pictures was sorted anew: the labels would be others."""
    run = runs.broken("torch", tmp_path / "run", step=4)
    names = runs.whole("torch") / "classes.json"
    assert json.loads(names.read_text()) == [str(digit) for digit in range(10)]
    (run / "classes.json").write_text(names.read_text().replace("7", "seven"))
    assert cli.main(["train", "--run", str(run), "--resume"]) == 2
    assert "class 7 is '7' in the data, 'seven' in classes.json" in capsys.readouterr().err
    for command in (
        ["evaluate", str(run)],
        ["inspect", str(run), "--image", "x.png", "--out", str(tmp_path / "y.png")],
    ):
        assert cli.main(command) == 2
        assert "class 7 is '7' in the data, 'seven' in classes.json" in capsys.readouterr().err
    meant = runs.broken("torch", tmp_path / "meant", step=4)
    shutil.copy(run / "classes.json", meant / "classes.json")
    assert cli.main(["train", "--run", str(meant), "--resume", "--override"]) == 0
    (entry,) = record(meant)["overrides"]
    assert [names[7] for names in entry["changes"]["classes.json"]] == ["seven", "7"]
    capsys.readouterr()
    for wrong in ("{}", "[1]", "["):
        (run / "classes.json").write_text(wrong)
        assert cli.main(["train", "--run", str(run), "--resume"]) == 2
        assert str(run / "classes.json") in capsys.readouterr().err
    (run / "classes.json").unlink()  # as of a version that did not write it
    assert cli.main(["train", "--run", str(run), "--resume"]) == 0
    assert (run / "classes.json").read_text() == names.read_text()


def test_an_evaluation_is_of_the_model_that_was_trained(runs, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    edit(run, "peak = 0.01", "peak = 0.02")  # which no evaluation looks at
    assert cli.main(["evaluate", str(run)]) == 0
    capsys.readouterr()
    edit(run, 'gelu = "tanh"', 'gelu = "erf"')
    assert cli.main(["evaluate", str(run)]) == 2
    assert "step 4: trained with another config.toml: model.gelu is 'tanh' there, 'erf' here" in capsys.readouterr().err


@pytest.mark.parametrize("begun", [True, False], ids=["checkpoint", "no_checkpoint"])
def test_a_truncated_config_toml_gets_no_defaults(runs, tmp_path: Path, begun: bool) -> None:  # type: ignore[no-untyped-def]
    """After any of its lines, with a checkpoint to compare with or before the first."""
    run = runs.broken("torch", tmp_path / "run", step=4)
    if not begun:
        (run / "checkpoints" / "00000004").rename(tmp_path / "aside")
    directory, dataset = RunDirectory(run), load_data(runs.config)
    text, expected = (run / "config.toml").read_text(), directory.config()
    lines = text.splitlines(keepends=True)
    # What of these tables is lost is what the defaults say; of the others, only a checkpoint or the file can say it.
    least = lines.index("[mesh]\n" if begun else "[evaluation]\n") - 1
    for count in range(len(lines)):
        (run / "config.toml").write_text("".join(lines[:count]))
        try:
            config = directory.config()
            assert config is not None
            config = resolve(config, dataset, "torch")
            directory.claim(config, resume=True)
        except SpecError:
            continue
        assert config == expected, f"after {count} lines"
        assert count >= least, f"after {count} lines"


def test_an_override_is_recorded(runs, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    resume = ["train", "--run", str(run), "--resume"]
    assert cli.main([*resume, "--schedule.peak", "0.02"]) == 2
    assert "change this one on purpose with moespec train --resume --override" in capsys.readouterr().err
    assert cli.main(["train", "--run", str(run), *runs.flags, "--backend", "torch", "--override"]) == 2
    assert "--override changes a run that goes on; it needs --resume" in capsys.readouterr().err
    for flags, message in (
        (["--training.seed", "1"], r"training\.seed is 0 there, 1 here; that cannot be overridden"),
        (["--training.batch", "8"], r"training\.batch is 16 there, 8 here; that cannot be overridden"),
        (["--model.width", "32"], r"expected F32"),
    ):
        assert cli.main([*resume, "--override", *flags]) == 2
        assert re.search(message, capsys.readouterr().err)
    assert record(run)["overrides"] == []
    assert cli.main([*resume, "--override", "--schedule.peak", "0.02"]) == 0
    entry = {"step": 4, "changes": {"schedule.peak": [0.01, 0.02]}}
    assert checkpoint.read_record(run / "checkpoints" / "00000004")["overrides"] == [entry]
    assert record(run)["overrides"] == [entry]
    assert record(run)["config"]["schedule"]["peak"] == 0.02
    rates = [[line["learning_rate"] for line in read_log(where, "train")] for where in (run, runs.whole("torch"))]
    assert rates[0][:4] == rates[1][:4]
    assert rates[0][4:11] == pytest.approx([2 * rate for rate in rates[1][4:11]])
    assert cli.main(resume) == 0, "from now on it is the configuration of the run"
    assert cli.main(["evaluate", str(run)]) == 0


def test_what_may_change_without_more_ado(runs, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    rsqrt = ["--schedule.name", "rsqrt", "--training.steps", "8"]
    whole = tmp_path / "whole"
    assert cli.main(["train", "--backend", "torch", "--run", str(whole), *runs.flags, *rsqrt]) == 0
    run = runs.stopped(whole, tmp_path / "run", step=8)
    flags = {"training.log_every": "7", "training.keep": "3", "training.compile": "never", "data.prefetch": "1"}
    flags |= {"training.evaluate_every": "7", "training.checkpoint_every": "7", "training.steps": "14"}
    # The digits have nothing to decode, and one process has one device.
    others = {"training.recompute", "backend", "data.cache", "data.workers"}
    others |= {"mesh.data", "mesh.fsdp", "mesh.expert", "mesh.transport"}
    assert {*flags, *others} == FREE | {"training.steps"}
    given = [word for key, value in flags.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert cli.main(["train", "--run", str(run), "--resume", "--training.recompute", *given]) == 0
    assert checkpoint.steps(run / "checkpoints") == [8, 14]
    assert record(run)["config"]["training"]["steps"] == 14
    capsys.readouterr()
    assert cli.main(["train", "--run", str(run), "--resume", "--training.steps", "13"]) == 2
    assert "training.steps=13: 14 steps are done already" in capsys.readouterr().err
    text = Path(__file__).parents[2].joinpath("docs/training.md").read_text()
    for field in FREE | {"training.steps"}:
        assert f"`{field}`" in text, "the list is in the documentation"
