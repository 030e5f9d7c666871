"""What an objective of training is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.data.dataset import Dataset
from moespec.models.families import Config as Model
from moespec.models.training.config import Config
from moespec.spec.routing import Params

__all__ = ["Loss", "Objective", "no_layout"]

Loss = Callable[..., tuple[Any, dict[str, Any]]]
"""`loss(params, batch) -> (loss, metrics)` for `make_step`; of an objective that is `averaged`, of `(params, batch, average)`."""


def no_layout(config: Config, model: Model) -> Params:
    """No parameters besides the model's."""
    return {}


class Objective(NamedTuple):
    """What a run minimises.

    loss = that of the objective + auxiliary losses of the routers (already weighted)

    measure: the name of its own part among the metrics, and what that is called.
    make_loss: of a backend, a resolved configuration and its model.
    make_batch: of a configuration, a data set and the rows of a batch that are wanted (None: all), the function of a step to what the
        host makes for it: "images" and what goes with them, or such dicts by name, where a step sees several views of the images.
    evaluation: `(B, config, model, dataset)` to a function of parameters that evaluates them on the run's own images.
    layout: the parameters besides the model's, which stand beside these and are dropped when the model is used.
    head: whether the model has one, with an output for each class of the data.
    averaged: whether the loss is also one of the average of the parameters.
    views: how many views of its images a step sees.
    """

    measure: tuple[str, str]
    make_loss: Callable[[Backend, Config, Model], Loss]
    make_batch: Callable[[Config, Dataset, range | None], Callable[[int], dict[str, Any]]]
    evaluation: Callable[[Backend, Config, Model, Dataset], Callable[[Any], dict[str, Any]]]
    layout: Callable[[Config, Model], Params] = no_layout
    head: bool = True
    averaged: bool = False
    views: int = 1
