"""A run that diverges: what became NaN or infinite first is named, and what is on the disk stays finite."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from moespec.backends.optimizer import OptimizerConfig
from moespec.models import cli
from moespec.models.errors import CheckpointError, RunError
from moespec.models.training import checkpoint, divergence, savestate
from moespec.models.training import train as training
from moespec.models.training.config import Config, ScheduleConfig, TrainingConfig
from moespec.models.training.resolve import load_backend
from moespec.models.training.rundirectory import RunDirectory

BACKENDS = ("jax", "torch")
ADVICE = "a smaller schedule.peak may help"


def diverging(
    B: Any, *, peak: float = 1e-2, clip: float | None = 1.0, b1: float = 0.9
) -> tuple[Config, Any, dict[str, Any]]:
    """A configuration of 6 steps, a loss of the parameters `a` and `b/kernel` with a batch of factors, and a state."""
    config = Config(
        optimizer=OptimizerConfig(clip=clip, b1=b1, weight_decay=0.0),
        schedule=ScheduleConfig(name="linear", peak=peak, warmup=1, end=peak),
        training=TrainingConfig(steps=6),
    )

    def loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        one = B.sum(params["a"] * params["a"]) * batch["a"]
        # The derivative of the square root at 0 is infinite, its value is not.
        other = B.sum(params["b"]["kernel"] ** 2 * batch["b"]) ** 0.5
        return one + other + batch["loss"], {}

    params = {"a": np.ones(2, np.float32), "b": {"kernel": np.ones(2, np.float32)}}
    return config, loss, B.export_state(B.init_state(params, config.optimizer))


def found(B: Any, bad: dict[int, dict[str, float]], *, last: int = 6, **options: Any) -> str:
    """The error, where the batches of some steps have other factors than 1 and 1, and something else added than 0."""
    config, loss, state = diverging(B, **options)

    def make_batch(step: int) -> Any:
        values = {"a": 1.0, "b": 1.0, "loss": 0.0, **bad.get(step, {})}
        return B.from_numpy({name: np.float32(value) for name, value in values.items()})

    more = {"compiled": False} if B.name == "torch" else {}
    return str(divergence.diverged(B, config, partial(B.make_step, loss, **more), make_batch, state, last=last))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_is_named(backend: str) -> None:
    pytest.importorskip(backend)
    B = load_backend(backend)
    nan, huge = float("nan"), 1e30
    first = found(B, {3: {"loss": nan}, 4: {"a": nan}})
    assert first == f"training diverged at step 4: the loss is nan; {ADVICE}"
    for clip in (1.0, None):
        first = found(B, {2: {"b": 0.0}, 3: {"loss": nan}}, clip=clip)
        assert "at step 3: the gradient of b/kernel is not finite (the loss is " in first
    first = found(B, {2: {"a": huge}}, clip=None)
    assert "at step 3: the norm of the gradient is not finite" in first or "second moment of a has infinity" in first
    # After a gradient of 0, and without a first moment, the update is larger than the rate.
    assert "at step 2: the parameter a has infinity" in found(B, {0: {"a": 0.0}}, peak=3e38, b1=0.0)
    assert "between step 1 and 6, but not when these were done once more" in found(B, {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rate_is_blamed_for_what_came_before_it(backend: str) -> None:
    """The first step has the rate 0, so that the second starts with the initial parameters."""
    pytest.importorskip(backend)
    B, nan = load_backend(backend), float("nan")
    for step in (0, 1):
        assert found(B, {step: {"loss": nan}}) == f"training diverged at step {step + 1}: the loss is nan"
        assert ADVICE not in found(B, {step: {"b": 0.0}})
    assert ADVICE in found(B, {2: {"b": 0.0}})
    assert ADVICE in found(B, {0: {"a": 0.0}}, peak=3e38, b1=0.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_finite_checkpoint_is_kept(  # type: ignore[no-untyped-def]
    runs, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of step 7 are NaN; the log is far apart, the next checkpoint would be that of step 8."""
    pytest.importorskip(backend)
    real = training.batch_of_step

    def broken(*arguments: Any, **rows: Any) -> dict[str, Any]:
        batch, step = real(*arguments, **rows), arguments[-1]
        return {**batch, "images": batch["images"] * np.float32(np.nan)} if step == 6 else batch

    monkeypatch.setattr(training, "batch_of_step", broken)
    config = replace(runs.config, training=replace(runs.config.training, log_every=100, evaluate_every=100))
    with pytest.raises(RunError, match=rf"diverged at step 7: the loss is nan; {ADVICE}"):
        runs.train(tmp_path / "run", backend, config)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4]
    arrays = (tmp_path / "run" / "checkpoints" / "00000004" / "arrays.safetensors").read_bytes()
    assert all(np.isfinite(value).all() for value in safetensors.numpy.load(arrays).values())
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()
    monkeypatch.setattr(training, "batch_of_step", real)
    runs.train(tmp_path / "run", backend, config)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4, 8, 12]


@pytest.mark.parametrize("tree", ["params", "nu"])
def test_a_state_that_is_not_finite_is_not_saved(  # type: ignore[no-untyped-def]
    runs, tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradient of the step were finite."""
    B = load_backend("torch")
    real = B.export_state

    def exported(state: Any) -> dict[str, Any]:
        result = real(state)
        if result["step"] == 8:
            result[tree]["head"]["bias"][3] = np.inf
        return result

    monkeypatch.setattr(B, "export_state", exported)
    with pytest.raises(RunError, match=r"at step 8: .* head/bias has infinity; a smaller"):
        runs.train(tmp_path / "run", "torch", replace(runs.config, training=replace(runs.config.training, keep=1)))
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4]


def test_a_parameter_of_nan_at_the_start_is_named(  # type: ignore[no-untyped-def]
    runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.initial_params

    def initial(*arguments: Any) -> dict[str, Any]:
        params = real(*arguments)
        params["head"]["bias"][0] = np.nan
        return params

    monkeypatch.setattr(training, "initial_params", initial)
    with pytest.raises(RunError, match=r"the initial parameter head/bias has NaN or infinity$"):
        runs.train(tmp_path / "run", "torch")
    assert not checkpoint.steps(tmp_path / "run" / "checkpoints")


def test_a_checkpoint_with_nan_is_named(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    """As an older version may have left it: all checksums are right."""
    run = runs.broken("torch", tmp_path / "run", step=4)
    directory = RunDirectory(run)
    config = directory.config()
    assert config is not None
    shapes = savestate.family(model := savestate.model_config(config.model)).parameter_shapes(model)
    found = checkpoint.read(run / "checkpoints" / "00000004", shapes)
    found.state["params"]["head"]["bias"][0] = np.nan
    checkpoint.write(run / "checkpoints", checkpoint.Checkpoint(found.state, {**found.record, "step": 8}), keep=9)
    with pytest.raises(CheckpointError, match=r"params/head/bias has NaN or infinity\. To go on from step 4, remove"):
        savestate.trained_params(directory, config)
    assert cli.main(["train", "--run", str(run), "--resume"]) == 2
    shown = capsys.readouterr().err
    assert "params/head/bias has NaN" in shown
    assert "schedule.peak" not in shown
