"""The step of a training run, for any backend."""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend, Step
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.families import Tower, family, fewest_images
from moespec.models.layers import MoeLayer, renewal
from moespec.training.compilation import pays
from moespec.training.configuration import config
from moespec.training.loop import resolve
from moespec.training.objectives.table import objective_of

__all__ = ["step_maker"]


def step_maker(B: Backend, run: config.Config) -> Callable[[OptimizerConfig], Step]:
    """`make(optimizer)` makes the training step of a resolved configuration, compiled where that pays."""
    training, objective, model = run.training, objective_of(run), resolve.model_config(run.model)
    how: Any = {"accumulate": training.accumulate, "averaged": objective.averaged}
    towers = {where: _layers(tower) for where, tower in objective.routed(run, model).items()}
    layers = [layer._replace(path=f"{where}{layer.path}") for where, own in towers.items() for layer in own]
    how |= renewal(B, layers)
    if not pays(B, training.total, training.compile):
        how["compiled"] = False
    if training.cuda_graph:
        how["cuda_graph"] = True
    loss = objective.make_loss(B, run, model)
    return lambda optimizer: B.make_step(loss, optimizer, **how)


def _layers(tower: Tower) -> list[MoeLayer]:
    layers: list[MoeLayer] = family(tower).moe_layers(tower, fewest_images(tower))
    return layers
