"""The interface of training objectives."""

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
"""`loss(params, batch) -> (loss, metrics)` for `make_step`, or `loss(params, batch, average)` if the objective is
`averaged`. If routers have state, a third result holds the routers' statistics by path."""


class Passes(NamedTuple):
    """How many images or texts a tower processes per image of the batch, with a backward pass (`trained`) and without (`forward`)."""

    tower: Tower
    trained: int
    forward: int = 0


def as_it_is(config: Config, model: Model, dataset: Dataset | None) -> Config:
    """Returns the configuration unchanged. Raises ConfigError for data without classes."""
    if dataset is not None and not dataset.classes:
        raise ConfigError(f"data.name={config.data.name!r}: expected images with classes, but these have only captions")
    return config


def trained(B: Backend, tower: Tower, params: Params, inputs: Any, random: Any, *, recompute: bool) -> Output:
    """Runs the forward pass of a tower in training. random: integer keys `(N, 4)` for router noise and dropout, or None."""
    module, like = family(tower), params["positions"] if tower.inputs == "ids" else inputs
    noise = None if random is None else gating_noise(B, module.moe_noise(tower, inputs.shape[0]), random, like)
    how: Any = {"noise": noise, "random": random, "train": True, "recompute": recompute}
    output: Output = module.forward(B, tower, params, inputs, **how)
    return output


def is_plain(data: DataConfig) -> bool:
    """Whether training uses images without augmentation, so that an image is the same in each epoch."""
    return all(getattr(data, name) == getattr(DataConfig(), name) for name in AUGMENTATION.split())


def contrasted(config: Config, dataset: Dataset | None) -> Config:
    """Returns the configuration with mixup, cutmix, label smoothing and class balancing off, as contrastive objectives require. Raises
    ConfigError if `training.loss` is set, or if a batch has one image, several micro-batches, or more images than the training set."""
    training = config.training
    if training.loss != "softmax":
        raise ConfigError(f"training.loss={training.loss!r} has no effect with objective={config.objective!r}")
    if dataset is not None and training.batch > len(dataset.train):
        raise ConfigError(f"training.batch={training.batch!r}: expected at most {len(dataset.train)} training images")
    if training.batch < 2 or training.accumulate > 1:
        given = f"training.batch={training.batch!r}, training.accumulate={training.accumulate!r}"
        why = "the others of a batch are the negatives: expected at least 2 images, and accumulate=1"
        raise ConfigError(f"{given}: {why}")
    return replace(config, data=replace(config.data, mixup=0.0, cutmix=0.0, label_smoothing=0.0, balance=0.0))


class Objective(NamedTuple):
    """What a run minimises.

        loss = the objective's own loss + auxiliary losses of the routers (already weighted)

    measure: the name of the objective's own loss among the metrics, and the title of this loss.
    make_loss: maps `(B, config, model)` to the loss function.
    make_batch: maps `(config, dataset, rows)` to a function that returns the batch of a step on the host: a dict of "images" and targets,
        or a dict of such dicts if a step uses several views. If `rows` is None, the batch contains all rows.
    evaluation: maps `(B, config, model, dataset, compiled)` to a function that evaluates parameters on the run's own images.
    layout: parameters of the objective, stored beside the model's parameters and dropped when the model is used.
    head: whether the model has an output for each class of the data.
    settled: maps `(config, model, dataset)` to the configuration with the settings that the objective requires, or
        raises ConfigError. `dataset` may be None.
    read: maps `(config, dataset)` to the data set with additional data, which the objective reads once before a run.
    prepared: maps `(B, config, model, dataset, run, params)` to the data set with values that the objective computes once.
    averaged: whether the loss also depends on the average of the parameters. views: the number of views of an image in a step.
    routed: maps `(config, model)` to the towers whose routers are trained, by the path of the tower's parameters ("" for the root).
    towers: maps `(config, model)` to the `Passes` of the towers in a step.
    of_batch: maps `(config, model)` to the extra work of each device per image of the full batch: (values produced, forward operations).
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
