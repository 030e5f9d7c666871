"""Determines the backend, the data set, the model and the schedule from a configuration.

`resolve` fills in all unset fields, so the saved configuration describes the run completely.
"""

import importlib
import os
from dataclasses import asdict, replace
from typing import Any, cast

from moespec.backends.choice import check_installed, choose
from moespec.backends.contract import Backend
from moespec.models import parameters, vit
from moespec.models.families import family
from moespec.models.layers import MoeLayer
from moespec.models.memory import check_limits, check_memory
from moespec.models.options import no_effect
from moespec.models.router_options import named, options_of
from moespec.spec.errors import ConfigError, ShapeError
from moespec.training.configuration.config import BackendName, Config
from moespec.training.configuration.length import in_steps, shrunk
from moespec.training.configuration.modelconfig import ModelConfig, model_config
from moespec.training.configuration.schedules import Schedule, schedule_of
from moespec.training.data import datasets
from moespec.training.data.dataset import Dataset
from moespec.training.evaluation.evaluate import try_loss
from moespec.training.objectives.table import objective_of, shapes_of

__all__ = ["choose_backend", "load_backend", "load_data", "model_config", "resolve", "schedule", "without_data"]

OF_DIGITS = 8
"""Default image side, in pixels, of models that are designed for the digits."""
DRAWS = 8
"""Number of 32-bit values needed per table entry while building a table."""


def choose_backend(requested: str) -> tuple[str, str]:
    """Returns the name of the backend and the reason for the choice, which is empty if the user requested the backend.

    For "auto", `moespec.backends.choice.choose` chooses the backend. Raises ConfigError if the framework is not installed.
    """
    if requested == "auto":
        return choose()
    check_installed(requested, f"backend={requested!r}")
    return requested, ""


def load_backend(name: str) -> Backend:
    """Imports the module `moespec.backends.<name>` without changing the backend that `moespec.backends` selects.

    Raises ConfigError if a package is missing, or if the memory limit of the process is too low.
    """
    check_limits(name)
    if name == "torch":
        # OpenMP reads this variable when torch loads OpenMP. By default, threads of OpenMP spin while they wait for each other. On a
        # machine with other load, spinning makes a small model ten times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        loaded = cast(Backend, importlib.import_module(f"moespec.backends.{name}"))
        if name == "jax":
            importlib.import_module("moespec.backends.jax.mesh").devices()
        return loaded
    except ModuleNotFoundError as error:
        raise ConfigError(f"backend={name!r}: {error}. Install it: pip install 'moespec[{name}]'") from error


def load_data(config: Config, first: datasets.First | None = None) -> Dataset:
    """Loads the data set of a configuration at the model's image size. first: see `load_configured`. Raises DataError or ConfigError."""
    check_limits(workers=config.data.workers)
    size = config.model.image_size
    if size is None and config.data.name in datasets.PICTURES and config.data.path:
        size = _own_size(config.model)
    return datasets.load_configured(config.data, image_size=size, first=first)


def without_data(config: Config) -> ModelConfig:
    """Completes the section `model` without reading the data: sizes follow from the name of the data set, the head from the objective.

    Raises ConfigError if neither the name nor the model determines the image size.
    """
    sizes = {**datasets.SIZES.get(config.data.name, {}), **({} if objective_of(config).head else {"classes": 0})}
    model = config.model.but(**{**sizes, **config.model.set()})
    if model.image_size is None and config.data.name != "digits":
        _own_size(model)
    return model


def _own_size(model: ModelConfig) -> int:
    """Returns the default image size of a named model. Raises ConfigError for a model that is designed for the digits."""
    size = model_config(ModelConfig(model.name)).image_size
    if size <= OF_DIGITS:
        made_for = f"model.name={model.name!r} is designed for digits of {size} x {size} pixels"
        raise ConfigError(
            f"model.image_size is not set: {made_for}; set --model.image-size 64 --model.patch-size 8, for example"
        )
    return size


def resolve(config: Config, dataset: Dataset, backend: str) -> Config:
    """Returns the configuration with every unset field filled in from the data, the model and the router.

    Raises ConfigError if the model does not fit the data or a field has an invalid value.
    """
    height, width, channels = dataset.shape
    if height != width:
        what = f"the images have {height} x {width} pixels, expected square images"
        raise ConfigError(f"data.path={config.data.path!r}: {what}; set model.image_size=N to resize and crop them")
    objective = objective_of(config)
    classes = len(dataset.classes) if objective.head else 0
    expected: dict[str, Any] = {"image_size": height, "channels": channels, "classes": classes}
    for name, value in expected.items():
        current = getattr(config.model, name)
        if current not in (None, value):
            whose = f"the data set {dataset.name!r} has" if objective.head else f"objective={config.objective!r} takes"
            raise ConfigError(f"model.{name}={current!r}: {whose} {value}")
    chosen = model_config(config.model.but(**expected))
    filled = {name: value for name, value in asdict(chosen).items() if name != "router_options"}
    training = config.training
    if config.data.crop_padding >= height:
        raise ConfigError(f"data.crop_padding={config.data.crop_padding!r}: expected less than {height} pixels")
    for name in ("batch", "evaluation_batch"):
        images = getattr(training, name)
        part = images // (training.accumulate if name == "batch" else 1)
        try:
            layers = family(chosen).moe_layers(chosen, part)
        except ShapeError as error:
            raise ConfigError(f"training.{name} gives {part} images at a time. {error}") from error
        check_memory(f"training.{name}={images!r}", images * height * width * channels)
        for layer in layers:
            _check_layer(layer, training=name == "batch")
    try:
        check_memory(f"model.name={config.model.name!r}, as configured", family(chosen).parameter_count(chosen))
    except MemoryError as error:  # `parameter_count` may create a router's parameters
        raise ConfigError(f"model.name={config.model.name!r}, as configured: {error}") from error
    training = in_steps(training, len(dataset.train))
    config = replace(config, training=training, schedule=shrunk(config.schedule, training.total))
    config = objective.settled(config, chosen, dataset)
    own = parameters.count(objective.layout(config, chosen))
    check_memory(f"objective={config.objective!r}, as configured in [moco], [text] and [lit]: {own:,} parameters", own)
    with named("optimizer.", ("decay", "rates")):
        config.optimizer.check_patterns(parameters.paths(shapes_of(config, chosen)))
    schedule(config)
    try_loss(config.training.loss, classes, backend)
    if isinstance(chosen, vit.VitConfig):
        filled["group_images_sparse"] = None
    return replace(config, backend=cast(BackendName, backend), model=config.model.but(**filled))


def _check_layer(layer: MoeLayer, *, training: bool) -> None:
    """Raises ConfigError for router options that training does not support, or that need more memory than the machine has."""
    settings = layer.settings
    if training:
        own = options_of(layer.router).keys() - {"experts"}
        with named("model.", ("experts",)), named("model.router_options.", own):
            settings.check_training()
    tables = getattr(settings, "ids", 0) * max(getattr(settings, "hashes", 1), getattr(settings, "choices", 1))
    check_memory(f"model.codes, model.token_ids: {tables} entries of tables", DRAWS * tables)
    if hasattr(settings, "capacity_factor"):
        slots = settings.capacity(train=training)
        arguments = f"model.experts={settings.experts!r} with a capacity of {slots} (model.router_options)"
        check_memory(arguments, layer.groups * settings.experts * slots * settings.width)


def schedule(config: Config) -> Schedule:
    """Returns the learning rate as a function of the step. Raises ConfigError for a field that has no effect in the schedule."""
    section = config.schedule
    options: dict[str, Any] = {key: value for key, value in asdict(section).items() if value is not None}
    for key, value in options.items():
        if reason := no_effect(config, f"schedule.{key}"):
            raise ConfigError(f"schedule.{key}={value!r} has no effect here: {reason}")
    with named("schedule.", options):
        return schedule_of(**options, total=config.training.total)
