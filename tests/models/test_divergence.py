"""Divergence: what became NaN or infinite first is named. That what is on the disk stays finite, see `test_life`."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from moespec.backends.optimizer import OptimizerConfig
from moespec.models.training import divergence
from moespec.models.training.config import Config, ScheduleConfig, TrainingConfig
from moespec.models.training.resolve import load_backend

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


def first_of(B: Any, bad: dict[int, dict[str, float]], *, last: int = 6, **options: Any) -> str:
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
    first = first_of(B, {3: {"loss": nan}, 4: {"a": nan}})
    assert first == f"training diverged at step 4: the loss is nan; {ADVICE}"
    for clip in (1.0, None):
        first = first_of(B, {2: {"b": 0.0}, 3: {"loss": nan}}, clip=clip)
        assert "at step 3: the gradient of b/kernel is not finite (the loss is " in first
    first = first_of(B, {2: {"a": huge}}, clip=None)
    assert "at step 3: the norm of the gradient is not finite" in first or "second moment of a has infinity" in first
    # After a gradient of 0, and without a first moment, the update is larger than the rate.
    assert "at step 2: the parameter a has infinity" in first_of(B, {0: {"a": 0.0}}, peak=3e38, b1=0.0)
    assert "between step 1 and 6, but not when these were done once more" in first_of(B, {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rate_is_blamed_for_what_came_before_it(backend: str) -> None:
    """The first step has the rate 0, so that the second starts with the initial parameters."""
    pytest.importorskip(backend)
    B, nan = load_backend(backend), float("nan")
    for step in (0, 1):
        assert first_of(B, {step: {"loss": nan}}) == f"training diverged at step {step + 1}: the loss is nan"
        assert ADVICE not in first_of(B, {step: {"b": 0.0}})
    assert ADVICE in first_of(B, {2: {"b": 0.0}})
    assert ADVICE in first_of(B, {0: {"a": 0.0}}, peak=3e38, b1=0.0)
