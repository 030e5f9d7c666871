"""Training: a run that was stopped ends with the bits of an unbroken one; runs do not mix; metrics are complete."""

import math
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from of_models import saved

import moespec.backends.numpy as numpy_backend
from moespec import cli
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.errors import Interrupted, RunError
from moespec.training.commands import train as train_command
from moespec.training.configuration.config import Config, ScheduleConfig, TrainingConfig
from moespec.training.data.loader import prepared, training_batch
from moespec.training.data.options import DataConfig
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.loop import best, checkpoint, hooks, resolve
from moespec.training.loop.evaluations import Evaluate, load_sets
from moespec.training.loop.hash_tables import initial_params
from moespec.training.loop.hooks import AfterStep, Hook
from moespec.training.loop.progress import Progress, kind_of
from moespec.training.loop.resolve import load_backend, model_config
from moespec.training.loop.resume import Start
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import RunLog, read_log
from moespec.training.loop.train import train
from moespec.training.objectives.classification import make_loss
from moespec.version import version


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_loss_falls_and_everything_is_recorded(runs, backend: str) -> None:  # type: ignore[no-untyped-def]
    run = runs.whole(backend)
    training, evaluations = read_log(run, "train"), read_log(run, "evaluation")
    assert [record["step"] for record in training] == list(range(1, 13))
    assert [record["step"] for record in evaluations] == [6, 12]
    assert checkpoint.read_record(run / "checkpoints" / "00000012")["version"] == version()
    assert training[-1]["loss"] < training[0]["loss"] == pytest.approx(np.log(10), rel=1e-5)
    assert training[0]["learning_rate"] == 0.0
    assert {"coverage", "dropped", "entropy", "load"} <= set(training[0]["moe"]["1"])
    assert len(training[0]["moe"]["1"]["load"]) == 2
    assert evaluations[-1]["images"] == 355
    assert checkpoint.steps(run / "checkpoints") == [4, 8, 12]


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_run_without_a_checkpoint_does_not_block(runs, tmp_path: Path, monkeypatch, resume: list[str]) -> None:  # type: ignore[no-untyped-def]
    """Stopped before its first checkpoint, it gives way to the corrected command, whatever it is; other files do not."""
    begun = runs.broken("jax", tmp_path / "begun", step=4)
    shutil.rmtree(begun / "checkpoints" / "00000004")
    started: list[Config] = []

    def stop(B, config, dataset, run, **options):  # type: ignore[no-untyped-def]
        started.append(config)
        raise RunError("stopped")

    monkeypatch.setattr(train_command, "train", stop)
    command = ["train", "--backend", "jax", *runs.flags, "--model.depth", "3", "--run", str(begun)]
    assert cli.main([*command, *resume]) == 2
    assert started[0].model.depth == 3
    assert RunDirectory(begun).config() == started[0]
    (begun / "letter.txt").touch()
    assert cli.main(command) == 2
    assert len(started) == 1


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.write("train", 1, LOGGED)
    (tmp_path / "metrics.jsonl").rename(tmp_path / "aside.jsonl")
    with pytest.raises(RunError, match=r"metrics\.jsonl: was removed or replaced during the run"):
        log.sync()
    log.close()
    with pytest.raises(RunError, match="no line of kind 'evaluation'"):
        read_log(tmp_path, "evaluation", some=True)


LOGGED = {"loss": 0.5, "images_per_second": 9.0}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"0.5", b"0.7", "damaged or edited: its checksum does not match its content"),
        (b"\n", b"\x0b", "not JSON"),  # line 3 is then a part of line 2
        (b".+", b'{"kind": "train", "step": 2, "loss": 1}', "kind train lacks 'images_per_second'"),
        (b".+", b'{"kind": "train", "step": "2"}', 'expected a record with "kind" and "step"'),
    ],
)
def test_a_damaged_line_of_the_log_is_named_and_kept(old: bytes, new: bytes, message: str, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    log, path = RunLog(tmp_path, 0), tmp_path / "metrics.jsonl"
    for step in (1, 2, 3, 4):
        log.write("train", step, LOGGED)
    log.close()
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damaged := b"".join([first, re.sub(old, new, second), *rest]))
    with pytest.raises(RunError, match=f"metrics.jsonl, line 2: .*{message}"):
        read_log(tmp_path, "train")
    RunLog(tmp_path, 4).close()
    (copy,) = tmp_path.glob("metrics.jsonl.damaged-*")
    assert copy.read_bytes() == damaged
    assert copy.name in capsys.readouterr().out
    assert {1, 4} <= {record["step"] for record in read_log(tmp_path, "train")} <= {1, 3, 4}
    path.write_bytes(first + b"[1, 2]")
    RunLog(tmp_path, 4, logged=4).close()
    assert "metrics.jsonl: has 1 of the 4 lines written up to step 4" in capsys.readouterr().out


def test_tensorboard_when_installed(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    for start in (0, 1):
        log = RunLog(tmp_path, start)
        log.write("train", start + 1, {"loss": 0.5, "moe": {"1": {"load": [0.25, 0.75]}}})
        log.close()
    files = map(str, (tmp_path / "tensorboard").iterdir())
    tags = {v.tag for file in files for event in loader.EventFileLoader(file).Load() for v in event.summary.value}
    assert tags == {"train/loss", "train/moe/1/load/0", "train/moe/1/load/1"}


def test_images_per_second_are_of_the_steps_since_the_last_record(tmp_path: Path, monkeypatch: Any) -> None:
    """And not of the time that an evaluation takes."""
    clock = [100.0]
    monkeypatch.setattr("moespec.training.loop.progress.time.perf_counter", lambda: clock[0])
    with Progress(tmp_path, TrainingConfig(batch=32), Start(None, 4, 7.0, [], [])) as progress:
        clock[0] = 102.0
        progress.trained(14, 0.1, {"loss": 1.0})
        clock[0] = 108.0
        progress.evaluated(14, None, {"accuracy": 0.5, "loss": 1.0, "images": 355})
        clock[0] = 109.0
        progress.trained(15, 0.1, {"loss": 1.0})
        assert progress.seconds == 7 + 9
    assert [line["images_per_second"] for line in read_log(tmp_path, "train")] == [32 * 10 / 2, 32 * 1 / 1]
    assert read_log(tmp_path, "evaluation")[0]["seconds"] == 7 + 8


# --------------------------------------------------------- the loop, with a step in place of the optimiser's

STEPS = 6
PEAK = 1e-2
RATES = [0.0, PEAK / 2, *(PEAK * (1 + math.cos(math.pi * n / 4)) / 2 for n in range(4))]
"""Two steps of warm-up, then half a cosine."""


class Recorder:
    """The numpy backend with a step that notes what it is given and adds 1 to the bias of the first class."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any, int]] = []
        self.rates: list[float] = []
        self.batches: list[dict[str, Any]] = []
        members = {name: getattr(numpy_backend, name) for name in dir(numpy_backend)}
        self.backend: Any = SimpleNamespace(**{**members, "make_step": self._make_step})

    def _make_step(self, loss: Any, optimizer: Any, *, accumulate: int, averaged: bool) -> Any:
        assert not averaged
        self.made.append((loss, optimizer, accumulate))

        def step(state: Any, batch: Any, rate: float) -> Any:
            self.rates.append(rate)
            self.batches.append(batch)
            head = state["params"]["head"]
            bias = head["bias"] + np.eye(len(head["bias"]))[0]
            params = {**state["params"], "head": {**head, "bias": bias}}
            return {**state, "params": params, "step": state["step"] + 1}, {"loss": 1.0 + rate, "grad_norm": 1.0}

        return step


@pytest.fixture
def config(runs: Any) -> Config:
    """Six steps with all that depends on the step: the rate, the order, augmentation and noise."""
    model = replace(runs.config.model, router="softmax_token_choice")
    settings = replace(runs.config.training, steps=STEPS, seed=3, accumulate=2, checkpoint_every=2, evaluate_every=4)
    settings = replace(settings, loss="sigmoid")
    data = DataConfig(crop_padding=1, flip=True, mixup=0.5)
    config = replace(runs.config, model=model, data=data, training=settings)
    return resolve.resolve(config, resolve.load_data(config), "numpy")


def trained(config: Config, run: Path, *hooks: Hook) -> Recorder:
    recorder, dataset = Recorder(), resolve.load_data(config)
    RunDirectory(run).claim(config, resume=True)
    train(recorder.backend, config, dataset, run, hooks=hooks, sets=load_sets(config, dataset))
    return recorder


def test_a_step_gets_the_rate_the_batch_and_the_noise_of_its_number(config: Config, tmp_path: Path) -> None:
    recorder, dataset, settings = trained(config, tmp_path), resolve.load_data(config), config.training
    ((loss, *options),) = recorder.made
    assert options == [config.optimizer, 2]
    assert recorder.rates == pytest.approx(RATES, rel=1e-12)
    assert len(recorder.batches) == STEPS
    for n, batch in enumerate(recorder.batches):
        expected = training_batch(dataset, config.data, batch=settings.batch, seed=settings.seed, step=n)
        assert batch.keys() == {"images", "targets", "random"}
        images = prepared(numpy_backend, dataset, *numpy_backend.from_numpy((expected["images"], expected["mixup"])))
        np.testing.assert_array_equal(batch["images"], images)
        np.testing.assert_array_equal(batch["targets"], expected["targets"])
        np.testing.assert_array_equal(batch["random"], [[settings.seed, 0, n, image] for image in range(16)])
    log = read_log(tmp_path, "train")
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    assert [line["learning_rate"] for line in log] == pytest.approx(RATES, rel=1e-12)
    assert [line["loss"] for line in log] == pytest.approx([1 + rate for rate in RATES], rel=1e-12)
    params = numpy_backend.from_numpy(initial_params(config, dataset))
    expected, _ = make_loss(numpy_backend, model_config(config.model), "sigmoid")(params, recorder.batches[0])
    assert loss(params, recorder.batches[0])[0] == expected
    assert expected > 10 * np.log(2), "of ten classes, and auxiliary losses"


def test_hooks_evaluations_and_checkpoints_are_of_the_parameters_after_their_step(
    config: Config, tmp_path: Path
) -> None:
    """Hooks see a step when it is evaluated and before it is saved, so that a run that ends in one goes on with it.

    The head has nothing but its bias, which counts the steps, so that the loss of an evaluation says which it saw.
    """
    seen: list[tuple[int, list[str], list[int]]] = []

    def hook(after: AfterStep) -> None:
        seen.append((after.done, list(after.evaluations), checkpoint.steps(tmp_path / "checkpoints")))
        assert after.metrics == {"loss": pytest.approx(1 + after.rate), "grad_norm": 1.0}
        assert after.B.state_params(after.state)["head"]["bias"][0] == after.done
        if len(seen) == 4:
            raise OSError("no room left")

    with pytest.raises(OSError, match="no room left"):
        trained(config, tmp_path, hook)
    four = (4, ["evaluation"], [2])
    assert seen == [(1, [], []), (2, [], []), (3, [], [2]), four]
    trained(config, tmp_path, hook)
    assert seen[4:] == [(3, [], [2]), four, (5, [], [2, 4]), (6, ["evaluation"], [2, 4])]
    zeros = np.mean(resolve.load_data(config).validation.labels == 0)
    evaluations = read_log(tmp_path, "evaluation")
    assert [line["step"] for line in evaluations] == [4, 6], "and after the last step"
    for line in evaluations:
        expected = 9 * np.log(2) + np.log1p(np.exp(line["step"])) - zeros * line["step"]
        assert line["loss"] == pytest.approx(expected, rel=1e-6)
        assert line["accuracy"] == pytest.approx(zeros)
    for step in (2, 4, 6):
        last = saved(tmp_path, step)
        assert last.state["params"]["head"]["bias"].tolist() == [step] + [0] * 9
        assert (last.state["step"], last.record["random"]) == (step, {"seed": 3, "step": step})


BEST = {  # measure, patience, its values after each step; the steps that are kept at the end, the best and the last
    "the earlier of equal ones": ("accuracy", 0, [0.1, 0.5, 0.4, 0.5, 0.3, 0.2], [2, 6]),
    "the smallest loss": ("loss", 2, [0.5, 0.1, 0.4, 0.5, 0.0, 0.0], [2, 4]),
    "expected a number": ("accuracy", 3, [math.nan, 0.2, math.nan, 0.3, 0.2, math.nan], [4, 6]),
    "the run's own is made at the end, too": ("other/accuracy", 2, [0.3, 0.2, 0.2, 0.9, 0.9, 0.9], [1, 3]),
}


@pytest.mark.parametrize("row", BEST)
def test_the_best_is_kept_after_any_interruption(config: Config, tmp_path: Path, monkeypatch: Any, row: str) -> None:
    """Killed in a step after its evaluations and before its checkpoint, or stopped by a signal in an evaluation."""
    measure, patience, values, kept = BEST[row]
    other = {"other": EvaluationConfig(every=1)} if "/" in measure else {}
    settings: Any = {"keep_best": measure, "patience": patience, "keep": 1, "evaluate_every": 1 + len(other)}
    config = replace(config, training=replace(config.training, **settings), evaluation=other)
    calls, stopped = count(1), 0

    def evaluated(params: Any) -> dict[str, Any]:
        if next(calls) == stopped:
            raise Interrupted("", signal.SIGTERM)
        return dict.fromkeys(("accuracy", "loss"), values[int(params["head"]["bias"][0]) - 1]) | {"images": 1}

    def outcome(run: Path) -> list[Any]:
        logs = [read_log(run, kind_of(name)) for name in (None, "other")]
        folder, lines = RunDirectory(run), [[(line["step"], str(line["loss"])) for line in log] for log in logs]
        return [folder.finished(config), checkpoint.steps(folder.checkpoints), folder.best(), *lines]

    monkeypatch.setattr(Evaluate, "_of_run", lambda self, after: evaluated(after.state["params"]))
    monkeypatch.setattr(Evaluate, "measure", lambda self, name, params: evaluated(params))
    trained(config, whole := tmp_path / "whole")
    finished, steps, found, own, _ = outcome(whole)
    assert (finished, steps, [found.step, own[-1][0]]) == (True, kept, kept)
    each = {kind: {"loss": 1, "accuracy": 1} for kind in ("evaluation", "evaluation/other")}
    assert best.updated(SimpleNamespace(exchanged=lambda own: ["0.25", own]), config, None, 6, each).value == 0.25
    for number, kill in product(range(1, kept[1] + 1), (True, False)):
        calls, stopped, run = count(1), number * (not kill), tmp_path / f"{number}{kill}"
        with pytest.raises(ZeroDivisionError if kill else Interrupted):
            trained(config, run, lambda after, last=number * kill: 1 / (after.done - last))
        trained(config, run)
        assert outcome(run) == outcome(whole), run.name


# ----------------------------------------------------------------------------------------------- runs that diverge


def first_of(B: Any, bad: dict[int, dict[str, float]], **options: Any) -> str:
    """The error of 6 steps, where the batches of some have other factors than 1 and 1, and something else added than 0."""
    config = Config(
        optimizer=OptimizerConfig(weight_decay=0.0, **options),
        schedule=ScheduleConfig(name="linear", peak=1e-2, warmup=1, end=1e-2),
        training=TrainingConfig(steps=6),
    )

    def loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        one = B.sum(params["a"] * params["a"]) * batch["a"]
        # The derivative of the square root at 0 is infinite, its value is not.
        other = B.sum(params["b"]["kernel"] ** 2 * batch["b"]) ** 0.5
        return one + other + batch["loss"], {}

    def make_batch(step: int) -> Any:
        values = {"a": 1.0, "b": 1.0, "loss": 0.0, **bad.get(step, {})}
        return B.from_numpy({name: np.float32(value) for name, value in values.items()})

    params = {"a": np.ones(2, np.float32), "b": {"kernel": np.ones(2, np.float32)}}
    state = B.export_state(B.init_state(params, config.optimizer))
    more = {"compiled": False} if B.name == "torch" else {}
    return str(hooks.diverged(B, config, partial(B.make_step, loss, **more), make_batch, state, last=6))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_first_is_named(backend: str) -> None:
    """And no rate is blamed for what came before it: the first step has the rate 0, the second the initial parameters."""
    B, nan = load_backend(backend), float("nan")
    for step, advice in ((0, ""), (1, ""), (3, "; try a smaller schedule.peak")):
        first = first_of(B, {step: {"loss": nan}, 4: {"a": nan}})
        assert first == f"training diverged at step {step + 1}: the loss is nan{advice}"
    for clip in (1.0, None):
        first = first_of(B, {2: {"b": 0.0}, 3: {"loss": nan}}, clip=clip)
        assert "at step 3: the gradient of b/kernel is not finite (the loss is " in first
    assert "between steps 1 and 6, but not when these steps were repeated" in first_of(B, {})
