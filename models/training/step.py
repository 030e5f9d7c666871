"""The step of a training run, for any backend."""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend, Step
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.compilation import pays
from moespec.models.training import config, resolve
from moespec.models.training.objectives.table import objective_of

__all__ = ["step_maker"]


def step_maker(B: Backend, run: config.Config) -> Callable[[OptimizerConfig], Step]:
    """`make(optimizer)` makes the training step of a resolved configuration, compiled where that pays."""
    training, objective = run.training, objective_of(run)
    how: Any = {"accumulate": training.accumulate, "averaged": objective.averaged}
    if not pays(B, training.total, training.compile):
        how["compiled"] = False
    loss = objective.make_loss(B, run, resolve.model_config(run.model))
    return lambda optimizer: B.make_step(loss, optimizer, **how)
