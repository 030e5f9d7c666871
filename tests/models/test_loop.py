"""What the training loop gives to a step and what it does with the result, with a step in place of the optimiser's."""

import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import moespec.backends.numpy as numpy_backend
from moespec.models import cli
from moespec.models.commandline import commands
from moespec.models.data.loader import training_batch
from moespec.models.data.options import DataConfig
from moespec.models.data.prepared import prepared
from moespec.models.errors import Interrupted
from moespec.models.interruption import Interruption
from moespec.models.training import checkpoint, resolve
from moespec.models.training.config import Config
from moespec.models.training.hash_tables import initial_params
from moespec.models.training.hooks import AfterStep, Hook
from moespec.models.training.objective import make_loss
from moespec.models.training.resolve import model_config
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.runlog import read_log
from moespec.models.training.train import train
from moespec.spec.errors import SpecError

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

    def _make_step(self, loss: Any, optimizer: Any, *, accumulate: int = 1) -> Any:
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
    recorder = Recorder()
    RunDirectory(run).claim(config, resume=True)
    train(recorder.backend, config, resolve.load_data(config), run, hooks=hooks)
    return recorder


def assert_batches(config: Config, recorder: Recorder, first: int) -> None:
    dataset, size, seed = resolve.load_data(config), config.training.batch, config.training.seed
    for n, batch in enumerate(recorder.batches, start=first):
        expected = training_batch(dataset, config.data, batch=size, seed=seed, step=n)
        assert batch.keys() == {"images", "targets", "random"}
        images = prepared(numpy_backend, dataset, *numpy_backend.from_numpy((expected["images"], expected["mixup"])))
        np.testing.assert_array_equal(batch["images"], images)
        np.testing.assert_array_equal(batch["targets"], expected["targets"])
        np.testing.assert_array_equal(batch["random"], [[seed, 0, n, image] for image in range(size)])


def test_a_step_gets_the_rate_the_batch_and_the_noise_of_its_number(config: Config, tmp_path: Path) -> None:
    recorder = trained(config, tmp_path)
    ((loss, *options),) = recorder.made
    assert options == [config.optimizer, 2]
    assert recorder.rates == pytest.approx(RATES, rel=1e-12)
    assert len(recorder.batches) == STEPS
    assert_batches(config, recorder, 0)
    log = read_log(tmp_path, "train")
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    assert [line["learning_rate"] for line in log] == pytest.approx(RATES, rel=1e-12)
    assert [line["loss"] for line in log] == pytest.approx([1 + rate for rate in RATES], rel=1e-12)
    params = numpy_backend.from_numpy(initial_params(config, resolve.load_data(config)))
    expected, _ = make_loss(numpy_backend, model_config(config.model), "sigmoid")(params, recorder.batches[0])
    assert loss(params, recorder.batches[0])[0] == expected
    assert expected > 10 * np.log(2), "of ten classes, and auxiliary losses"


def test_evaluations_and_checkpoints_are_of_the_parameters_after_their_step(config: Config, tmp_path: Path) -> None:
    """The head has nothing but its bias, which counts the steps, so that the loss of an evaluation says which it saw."""
    trained(config, tmp_path)
    zeros = np.mean(resolve.load_data(config).validation.labels == 0)
    evaluations = read_log(tmp_path, "evaluation")
    assert [line["step"] for line in evaluations] == [4, 6], "and after the last step"
    for line in evaluations:
        expected = 9 * np.log(2) + np.log1p(np.exp(line["step"])) - zeros * line["step"]
        assert line["loss"] == pytest.approx(expected, rel=1e-6)
        assert line["accuracy"] == pytest.approx(zeros)
    folder = tmp_path / "checkpoints"
    assert checkpoint.steps(folder) == [2, 4, 6]
    for step in (2, 4, 6):
        found = RunDirectory(tmp_path).load(shapes_of(config), step=step)
        assert found is not None
        assert found.state["params"]["head"]["bias"].tolist() == [step] + [0] * 9
        assert (found.state["step"], found.record["random"]) == (step, {"seed": 3, "step": step})


def shapes_of(config: Config) -> dict[str, Any]:
    model = model_config(config.model)
    return dict(resolve.family(model).parameter_shapes(model))


def test_a_resumed_run_goes_on_with_the_next_step(config: Config, runs: Any, tmp_path: Path) -> None:
    trained(config, tmp_path / "whole")
    resumed = runs.stopped(tmp_path / "whole", tmp_path / "resumed", step=4)
    recorder = trained(config, resumed)
    assert recorder.rates == pytest.approx(RATES[4:], rel=1e-12)
    assert_batches(config, recorder, 4)
    assert [line["learning_rate"] for line in read_log(resumed, "train")] == pytest.approx(RATES, rel=1e-12)


def test_hooks_see_each_step_when_it_is_evaluated_and_before_it_is_saved(config: Config, tmp_path: Path) -> None:
    """So that a checkpoint is of a step that they have seen: a run that ends in one goes on with it."""
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


def test_a_hook_ends_the_run_by_a_signal(config: Config, tmp_path: Path) -> None:
    def hook(after: AfterStep) -> None:
        if after.done == 2:
            signal.raise_signal(signal.SIGTERM)
            deadline = time.monotonic() + 30
            while Interruption.current.signal is None and time.monotonic() < deadline:  # type: ignore[union-attr]
                time.sleep(0.01)

    with pytest.raises(Interrupted, match="stopped by SIGTERM; the 3 steps done of 6 are saved"):
        trained(config, tmp_path, hook)
    assert checkpoint.steps(tmp_path / "checkpoints") == [2, 3]


def test_a_resumed_run_has_its_recorded_settings(
    config: Config, runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, none of which the command line repeats."""
    trained(config, tmp_path / "whole")
    resumed = runs.stopped(tmp_path / "whole", tmp_path / "resumed", step=4)
    seen: list[Config] = []

    def stop(B: Any, config: Config, dataset: Any, run: Path, **rest: Any) -> None:
        seen.append(config)
        raise SpecError("seen")

    monkeypatch.setattr(commands, "train", stop)
    assert cli.main(["train", "--run", str(resumed), "--resume"]) == 2
    assert capsys.readouterr().err.endswith("moespec: seen\n")
    assert seen == [config]
