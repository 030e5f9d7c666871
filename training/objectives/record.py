"""What an objective of training is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.families import Config as Model
from moespec.models.families import Tower, family
from moespec.models.layers import Output
from moespec.models.random_keys import gating_noise
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset
from moespec.training.data.options import DataConfig

__all__ = ["Loss", "Objective", "Passes", "as_it_is", "contrasted", "is_plain", "trained"]

AUGMENTATION = "crop crop_padding flip jitter grey blur solarise randaugment transform erase"

Loss = Callable[..., tuple[Any, ...]]
"""`loss(params, batch) -> (loss, metrics)` for `make_step`; of an objective that is `averaged`, of `(params, batch, average)`. Where
routers keep a state, with their statistics by path as a third."""


class Passes(NamedTuple):
    """A tower of a step: for each image of the batch it is trained on so many images or texts, and on others goes forward alone."""

    tower: Tower
    trained: int
    forward: int = 0


def as_it_is(config: Config, model: Model, dataset: Dataset | None) -> Config:
    """The configuration as it is. Raises ConfigError for data without classes."""
    if dataset is not None and not dataset.classes:
        raise ConfigError(f"data.name={config.data.name!r}: its images have captions, and no classes to be told apart")
    return config


def trained(B: Backend, tower: Tower, params: Params, inputs: Any, random: Any, *, recompute: bool) -> Output:
    """The forward pass of a tower in training, with the noise of its routers drawn from the integers `random`, if there are any."""
    module, like = family(tower), params["positions"] if tower.inputs == "ids" else inputs
    noise = None if random is None else gating_noise(B, module.moe_noise(tower, inputs.shape[0]), random, like)
    how: Any = {"noise": noise, "random": random, "train": True, "recompute": recompute}
    output: Output = module.forward(B, tower, params, inputs, **how)
    return output


def is_plain(data: DataConfig) -> bool:
    """Whether images are the same in each step: no field that changes them is set."""
    return all(getattr(data, name) == getattr(DataConfig(), name) for name in AUGMENTATION.split())


def contrasted(config: Config, dataset: Dataset | None) -> Config:
    """The configuration without what changes labels, which images that are told from each other do not have. Raises ConfigError for
    batches whose other images are not negatives, and a loss of labels."""
    training = config.training
    if training.loss != "softmax":
        raise ConfigError(
            f"training.loss={training.loss!r}: of labels, and objective={config.objective!r} has its own loss"
        )
    if dataset is not None and training.batch > len(dataset.train):
        there = f"there are {len(dataset.train)} training images, each its own negative then"
        raise ConfigError(f"training.batch={training.batch!r}: {there}")
    if training.batch < 2 or training.accumulate > 1:
        given = f"training.batch={training.batch!r}, training.accumulate={training.accumulate!r}"
        why = "the others of a batch are the negatives of each, so that a batch has at least two, and is not split"
        raise ConfigError(f"{given}: {why}")
    return replace(config, data=replace(config.data, mixup=0.0, cutmix=0.0, label_smoothing=0.0))


class Objective(NamedTuple):
    """What a run minimises.

    loss = that of the objective + auxiliary losses of the routers (already weighted)

    measure: the name of its own part among the metrics, and what that is called.
    make_loss: of a backend, a resolved configuration and its model.
    make_batch: of a configuration, a data set and the rows of a batch that are wanted (None: all), the function of a step to what the
        host makes for it: "images" and what goes with them, or such dicts by name, where a step sees several views of the images.
    evaluation: `(B, config, model, dataset, compiled)` to a function of parameters that evaluates them on the run's own images.
    layout: the parameters besides the model's, which stand beside these and are dropped when the model is used.
    head: whether the model has one, with an output for each class of the data.
    settled: of a configuration, its model and data (None where these are not read), the configuration with what the objective decides
        filled in. Raises ConfigError for what it cannot be.
    read: of a configuration and its data, the data set with what the objective reads of it once, before a run is begun.
    prepared: `(B, config, model, dataset, run, params)` to the data set with what the objective computes of it once.
    averaged: whether the loss is also one of the average of the parameters.
    views: how many views of its images a step sees.
    routed: of a configuration that is settled and its model, the towers whose routers are trained, by where their parameters are: "" for
        the root.
    towers: of a configuration that is settled and its model, what a step computes. of_batch: of the same, what each device computes
        besides for each image of the whole batch: the numbers that the layers make, and the operations of a forward pass.
    """

    measure: tuple[str, str]
    make_loss: Callable[[Backend, Config, Model], Loss]
    make_batch: Callable[[Config, Dataset, range | None], Callable[[int], dict[str, Any]]]
    evaluation: Callable[[Backend, Config, Model, Dataset, bool], Callable[[Any], dict[str, Any]]]
    layout: Callable[[Config, Model], Params] = lambda config, model: {}
    settled: Callable[[Config, Model, Dataset | None], Config] = as_it_is
    read: Callable[[Config, Dataset], Dataset] = lambda config, dataset: dataset
    prepared: Callable[[Backend, Config, Model, Dataset, Path, Params], Dataset] = (
        lambda B, config, model, dataset, *_: dataset
    )
    head: bool = True
    averaged: bool = False
    views: int = 1
    routed: Callable[[Config, Model], dict[str, Tower]] = lambda config, model: {"": model}
    towers: Callable[[Config, Model], list[Passes]] = lambda config, model: [Passes(model, 1)]
    of_batch: Callable[[Config, Model], tuple[int, int]] = lambda config, model: (0, 0)
