"""The objectives by name."""

from moespec.models import parameters
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.training.config import Config
from moespec.models.training.objectives.classification import CLASSIFICATION
from moespec.models.training.objectives.lit import LIT
from moespec.models.training.objectives.moco import MOCO
from moespec.models.training.objectives.record import Objective
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = ["besides", "forward_passes", "objective_of", "shapes_of"]

OBJECTIVES = {"classification": CLASSIFICATION, "moco": MOCO, "lit": LIT}


def objective_of(config: Config) -> Objective:
    """What a run minimises."""
    return OBJECTIVES[config.objective]


def forward_passes(config: Config) -> int:
    """The forward passes of its model that training costs for each image, where a backward pass is two, three with recomputation.

    Raises ConfigError where it is not the model alone that is trained.
    """
    objective = objective_of(config)
    if objective is LIT:
        raise ConfigError("objective='lit': what is counted are models of images alone, not towers of texts")
    return objective.views * ((4 if config.training.recompute else 3) + objective.averaged)


def shapes_of(config: Config, model: Model) -> Params:
    """The shapes of all parameters of a run: those of its model, and beside them those of its objective."""
    own = objective_of(config).layout(config, model)
    return {**family(model).parameter_shapes(model), **parameters.shapes(own)}


def besides(config: Config, model: Model, *, lazily: bool = False) -> Params:
    """The initial parameters of the objective, which stand beside those of the model."""
    return parameters.initial(objective_of(config).layout(config, model), config.training.seed, lazily=lazily)
