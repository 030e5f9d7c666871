"""The objectives by name."""

from functools import partial

from moespec.models import counts, parameters
from moespec.models.families import Config as Model
from moespec.models.families import Tower, family
from moespec.models.families import draws as draws_of
from moespec.spec.own import find_own, is_own
from moespec.spec.routing import Params
from moespec.training.configuration.config import Config
from moespec.training.objectives.classification import CLASSIFICATION
from moespec.training.objectives.lit import LIT
from moespec.training.objectives.moco import MOCO
from moespec.training.objectives.record import Objective

__all__ = ["draws", "extra_params", "forward_passes", "objective_of", "shapes_of", "training_flops"]

OBJECTIVES = {"classification": CLASSIFICATION, "moco": MOCO, "lit": LIT}


def objective_of(config: Config) -> Objective:
    """The objective of a run: an entry of `OBJECTIVES`, or a user-defined objective."""
    name, loss = config.objective, config.training.loss
    chosen = find_own("objective", name, Objective) if is_own(name) else OBJECTIVES[name]
    if chosen.make_loss is CLASSIFICATION.make_loss and is_own(loss):
        return chosen._replace(measure=("own_loss", loss.rpartition(":")[2]))
    return chosen


def draws(config: Config, model: Model) -> bool:
    """Whether a training step draws random numbers for gating noise, dropout or stochastic depth in its trained towers."""
    towers = objective_of(config).towers(config, model)
    return any(trained and draws_of(tower, config.training.batch) for tower, trained, _ in towers)


def forward_passes(config: Config, model: Model) -> list[tuple[Tower, int]]:
    """Returns the training cost of each tower per image, in forward passes. A backward pass counts as two, or three with recomputation."""
    each = 4 if config.training.recompute else 3
    return [(tower, trained * each + forward) for tower, trained, forward in objective_of(config).towers(config, model)]


def training_flops(
    config: Config, model: Model, images: int, *, batch: int | None = None, every_slot: bool = False
) -> float:
    """Returns the operations of training on `images` images and as many texts: the sum of `counts.training_flops` over all towers."""
    of = partial(counts.training_flops, images=images, batch=batch, every_slot=every_slot)
    return sum(of(tower, passes=passes) for tower, passes in forward_passes(config, model))


def shapes_of(config: Config, model: Model) -> Params:
    """Returns the shapes of all parameters of a run: the parameters of the model and of the objective."""
    own = objective_of(config).layout(config, model)
    return {**family(model).parameter_shapes(model), **parameters.shapes(own)}


def extra_params(config: Config, model: Model, *, lazily: bool = False) -> Params:
    """The initial values of the parameters that the objective adds to the model."""
    return parameters.initial(objective_of(config).layout(config, model), config.training.seed, lazily=lazily)
