"""How long a run is: steps, epochs and examples, short warm-ups, runs that go on for longer; and the learning rate of each step."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moespec import cli
from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.errors import ConfigError
from moespec.training.commands.study import entries
from moespec.training.configuration import configfile, length
from moespec.training.configuration.config import Config, ScheduleConfig, TrainingConfig
from moespec.training.configuration.length import in_steps, settled, shrunk
from moespec.training.configuration.schedules import SCHEDULES, cosine, linear, rsqrt
from moespec.training.data.datasets import load
from moespec.training.loop import checkpoint
from moespec.training.loop.resolve import resolve
from moespec.training.loop.runlog import read_log


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"steps": 7}, 7),
        ({}, 1500),
        ({"epochs": 3.0}, 30),  # 100 images, 10 batches an epoch
        ({"epochs": 0.03}, 1),
        ({"epochs": 1.1}, 11),  # though 1.1 * 100 / 10 is more than that in binary
        ({"examples": 20}, 2),
        ({"examples": 21}, 3),
    ],
)
def test_units(given: dict[str, Any], steps: int) -> None:
    assert in_steps(TrainingConfig(**given, batch=10), 100) == TrainingConfig(steps=steps, batch=10)


def chosen(words: str, base: Config) -> Config:
    """The configuration of a command line."""
    return entries([f"own: {words}"], base)["own"]


def test_what_is_given_takes_the_place_of_what_was(tmp_path: Path) -> None:
    """On the command line and in a file, of another unit and of another optimiser."""
    base = Config(training=TrainingConfig(steps=12), optimizer=OptimizerConfig(b2=0.98, weight_decay=0.3, clip=1.0))
    assert chosen("--training.epochs 3", base).training == TrainingConfig(epochs=3.0)
    assert chosen("--training.examples=9", base).training == TrainingConfig(examples=9)
    assert chosen("--training.batch 8", base).training.steps == 12
    with pytest.raises(ConfigError, match="set only one of them"):
        chosen("--training.examples=9 --training.steps 4", base)
    sgd = chosen("--optimizer.name sgd", base).optimizer
    assert (sgd.b2, sgd.momentum, sgd.weight_decay, sgd.clip) == (None, 0.9, 0.3, 1.0)
    assert chosen("--optimizer.name adamw", base).optimizer.b2 == 0.98
    (tmp_path / "c.toml").write_text('[training]\nepochs = 2\n[optimizer]\nname = "lamb"\nema = 0.5\n')
    config = configfile.read(tmp_path / "c.toml", base)
    assert config.training == TrainingConfig(epochs=2.0)
    assert (config.optimizer.name, config.optimizer.b2, config.optimizer.epsilon) == ("lamb", 0.999, 1e-6)


def test_a_run_shorter_than_its_warm_up() -> None:
    assert shrunk(ScheduleConfig(warmup=50), 51).warmup == 50
    assert [shrunk(ScheduleConfig(warmup=50), steps).warmup for steps in (50, 4, 1)] == [25, 2, 0]
    given = Config(training=TrainingConfig(epochs=0.1), schedule=ScheduleConfig(warmup=50))
    config = resolve(given, load("digits", "", image_size=None, validation_share=0.2), "numpy")
    assert (config.training.steps, config.schedule.warmup) == (3, 1)
    assert length.notes(given, config) == [
        "training.epochs=0.1: 3 steps",
        "schedule.warmup=50: must be shorter than the 3 steps of the run, shortened to 1",
    ]
    assert length.notes(config, config) == []
    long = replace(Config(), schedule=ScheduleConfig("rsqrt", warmup=10, cooldown=50))
    short = replace(long, training=TrainingConfig(steps=4), schedule=shrunk(long.schedule, 4))
    assert (short.schedule.warmup, short.schedule.cooldown, shrunk(long.schedule, 60)) == (2, 1, long.schedule)
    said = "schedule.cooldown=50: longer than the 2 steps after the warm-up, shortened to 1"
    assert length.notes(long, short)[1:] == [said]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("cooldown", [0, 3])
def test_settled_are_the_rates_that_no_longer_run_changes(name: str, cooldown: int) -> None:
    own = {"cooldown": cooldown, "timescale": 5.0} if name == "rsqrt" else {}
    schedule = ScheduleConfig(name=name, warmup=4, **own)  # type: ignore[arg-type]
    rates = [SCHEDULES[name](1.0, total=total, warmup=4, **own) for total in (12, 20)]
    same = [n for n in range(12) if rates[0](n) == rates[1](n)]
    count = settled(schedule, 12)
    # That the first step of the cooldown has the rate of before is not made use of.
    assert same == list(range(count + (1 if cooldown and name == "rsqrt" else 0)))


@pytest.fixture(scope="module")
def cooled(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of 12 steps of rsqrt with a cooldown of 5, which keeps one checkpoint."""
    run = tmp_path_factory.mktemp("cooled") / "run"
    assert cli.main(["train", "--backend", "torch", "--run", str(run), *runs.flags, *RSQRT]) == 0
    return run


RSQRT = ("--schedule.name", "rsqrt", "--schedule.cooldown", "5", "--schedule.timescale", "4", "--training.keep", "1")
RSQRT += ("--training.keep-best", "loss")


def test_rsqrt_goes_on_for_longer(runs: Any, cooled: Path, tmp_path: Path, said: Any) -> None:
    """From the checkpoint before the cooldown, kept with its best, to the bits of a run that was as long from the beginning."""
    assert checkpoint.steps(cooled / "checkpoints") == [6, 7, 12]
    run = Path(shutil.copytree(cooled, tmp_path / "run"))
    shown = said(["train", "--run", str(run), "--resume", "--training.steps", "16"])
    assert "cooled_00000012: moved the cooldown checkpoint aside" in shown
    assert checkpoint.steps(run / "checkpoints") == [6, 11, 16]
    assert (run / "checkpoints" / "cooled_00000012" / "state.json").is_file()
    longer = tmp_path / "longer"
    flags = [*runs.flags, *RSQRT, "--training.steps", "16"]
    assert cli.main(["train", "--backend", "torch", "--run", str(longer), *flags]) == 0
    files = [where / "checkpoints" / "00000016" / "arrays.safetensors" for where in (run, longer)]
    assert files[0].read_bytes() == files[1].read_bytes()
    rates = [[line["learning_rate"] for line in read_log(where, "train")] for where in (run, longer)]
    assert rates[0] == rates[1]


def test_what_would_have_been_another_run(runs: Any, cooled: Path, tmp_path: Path, said: Any) -> None:
    """Cosine, and rsqrt after its cooldown began; nothing changes in the folder. On purpose it may."""
    shutil.copytree(cooled, tmp_path / "rsqrt", ignore=shutil.ignore_patterns("0000000[67]"))
    cosine = runs.broken("torch", tmp_path / "cosine", step=8)
    # Also with a checkpoint of its warm-up.
    warm = cosine / "checkpoints" / "00000003"
    shutil.copytree(cosine / "checkpoints" / "00000008", warm)
    record = checkpoint.read_record(cosine / "checkpoints" / "00000008")
    checkpoint.amend(warm, {**record, "step": 3})
    for run, message in (
        (tmp_path / "rsqrt", "'rsqrt' with 16 steps has the same rates as with 12 only for the first 7 steps"),
        (cosine, "'cosine' with 16 steps has the same rates as with 12 only for the first 3 steps"),
    ):
        files = runs.files(run)
        error = said(["train", "--run", str(run), "--resume", "--training.steps", "16"], 2)
        assert message in error
        assert ("use the rsqrt schedule for runs that you may extend" in error) == (run == cosine)
        assert files.items() <= runs.files(run).items()
    assert cli.main(["train", "--run", str(cosine), "--resume", "--override", "--training.steps", "9"]) == 0


def test_a_run_by_epochs(runs: Any, tmp_path: Path, said: Any) -> None:
    """Whose warm-up is too long, and which goes on as begun with the same options."""
    flags = [flag for pair in zip(*[iter(runs.flags)] * 2, strict=True) if pair[0] not in DROPPED for flag in pair]
    run, epochs = tmp_path / "run", ["--training.epochs", "0.04", "--optimizer.name", "sgd"]
    shown = said(["train", "--backend", "torch", "--run", str(run), *flags, *epochs])
    assert "training.epochs=0.04: 4 steps" in shown
    assert "schedule.warmup=50: must be shorter than the 4 steps of the run, shortened to 2" in shown
    assert "finished already" in said(["train", "--run", str(run), *flags, *epochs])


def test_a_run_that_ends_early(runs: Any, tmp_path: Path, said: Any) -> None:
    """The first step has a learning rate of 0. The second has such a high rate that the loss rises. Only the second step is logged."""
    train = ["train", "--run", run := str(tmp_path / "run"), *runs.flags, "--training.evaluate-every", "1"]
    train += ["--schedule.peak", "10", "--training.log-every", "12"]
    alone, odd = (said([*train, f"--training.{wrong}"], 2) for wrong in ("patience=1", "keep-best=f1"))
    assert "patience=1 has no effect here: training.keep_best is not set" in alone
    assert "='f1': expected one of accuracy, balanced_accuracy, loss, top5" in odd
    train += ["--backend=torch", "--data.balance=1", "--training.keep-best=loss", "--training.patience=1"]
    early = "stopped early: 1 evaluation without an improvement of loss"
    for finished in ("finished", "finished already"):
        assert re.search(f"{finished}, 2 steps .*\n{early}\nbest loss 2.3026 at step 1\n", said(train))
    assert re.search(f"n\\^-1 in a class (?s:.*){early}; best loss 2.3026", Path(run, "report.html").read_text())
    assert [line["step"] for line in read_log(tmp_path / "run", "train")] == [2]
    assert ": step 1 of 12" in said(["evaluate", run, "--step", "best"])
    assert "finished, 12 steps" in said(["train", "--run", run, "--resume", "--training.patience", "12"])
    assert "but no best step, as training.keep_best is not set" in said(
        ["evaluate", str(runs.whole("torch")), "--step", "best"], 2
    )


DROPPED = ("--training.steps", "--schedule.warmup")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cosine(-1.0, total=10), "peak=-1.0"),
        (lambda: linear(1.0, total=10, warmup=10), "warmup=10"),
        (lambda: linear(1.0, total=10, end=-0.1), "end=-0.1"),
        (lambda: rsqrt(1.0, total=10, warmup=5, cooldown=6), "cooldown=6"),
        (lambda: rsqrt(1.0, total=10, timescale=0), "timescale=0"),
        (lambda: cosine(1.0, total=10)(10), "step=10"),
    ],
)
def test_errors(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
