"""Determines the initial parameters of a run with `init`, and the model that fine-tuning takes from the source."""

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from moespec.models import vit
from moespec.models.families import Config as Model
from moespec.models.families import family, names, of_name
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params
from moespec.training.configuration.config import Config, ModelConfig
from moespec.training.configuration.configfile import digits
from moespec.training.data.dataset import Dataset
from moespec.training.data.datasets import PICTURES
from moespec.training.data.options import DataConfig
from moespec.training.loop.hash_tables import initial_params
from moespec.training.loop.resolve import choose_backend, model_config
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.objectives.table import extra_params
from moespec.training.transfer.rules import transferred
from moespec.training.weights.formats import Given, read
from moespec.training.weights.record import Weights

__all__ = ["finetuned", "model_of", "sized", "starting_params", "taken"]


def starting_params(config: Config, dataset: Dataset, *, lazily: bool = False) -> Params:
    """Returns the initial parameters of a run, from `config.init` if set. Prints which parameters are new or changed.

    lazily: whether to draw the parameters of a run without `init` only when they are read. Raises RunError or CheckpointError
    for a source that is missing or damaged, and ConfigError for a source that does not fit.
    """
    lazily = lazily and config.init is None
    initial = initial_params(config, dataset, lazily=lazily)
    extra = extra_params(config, model_config(config.model), lazily=lazily)
    if config.init is None:
        return {**initial, **extra}
    result = transferred(read(Path(config.init), Given()), model_config(config.model), initial, skip=config.init_skip)
    print(f"init: {config.init}")
    for what in ("new", "resized", "upcycled"):
        if names := getattr(result, what):
            shown = names if len(names) <= 4 else [*names[:2], f"{names[2]} and {len(names) - 3} more"]
            print(f"  {what}: {', '.join(shown)}")
    return {**result.params, **extra}


def model_of(weights: Weights) -> ModelConfig:
    """Returns the section `model` for `weights`, without the fields that the data determine: channels, classes and image size.

    Soft MoE keeps its number of slots at any image size.
    """
    config = weights.config
    values = {**asdict(config), **dict.fromkeys(("image_size", "channels", "classes"))}
    if isinstance(config, vit.VitConfig) and vit.moe_blocks(config):
        blocks = {n: {**of, "router_options": _options(vit.of_block(config, int(n)))} for n, of in config.block.items()}
        values |= {"router_options": _options(config), "block": blocks}
    return ModelConfig(_name(config), **values)


def _options(config: vit.VitConfig) -> dict[str, Any]:
    options = dict(config.router_options)
    if config.router == "soft_moe":
        options["slots_per_expert"] = vit.router_config(config).capacity()
    return options


def _name(config: Model) -> str:
    """Returns the name of a model with these sizes or, if none exists, of any model of the family. Either works: all fields are set."""
    sizes = ("patch_size", "width", "depth", "hidden", "heads", "token_hidden", "sparse_tokens", "sparse_width")

    def sizes_of(model: Model) -> list[Any]:
        return [getattr(model, size, None) for size in sizes]

    of_family = [name for name in names() if of_name(name) is family(config)]
    same = (name for name in of_family if sizes_of(of_name(name).named(name)) == sizes_of(config))
    return next(same, of_family[0])


def finetuned(config: Config, path: str, *, other_data: bool) -> Config:
    """Returns the configuration with the model of the weights at `path` and, if `path` is a run, with the data and backend of the run.

    other_data: whether to keep the data of `config`, but normalise images with the mean and standard deviation of the run.
    """
    model, run = model_of(read(Path(path), Given())), RunDirectory(Path(path)).config()
    if run is None:
        return replace(config, model=model, init=path)
    with suppress(ConfigError):  # the run's backend may not be installed
        choose_backend(run.backend)
        config = replace(config, backend=run.backend)
    if other_data:
        data = replace(config.data, mean=run.data.mean, std=run.data.std)
        return replace(config, model=model, data=data, init=path)
    model = model.but(image_size=run.model.image_size)
    return replace(config, model=model, data=run.data, evaluation=run.evaluation, init=path)


def taken(config: Config, *, given: bool) -> str:
    """Describes the data and the evaluations that fine-tuning takes from a run.

    given: whether the user has set data. Raises ConfigError if the user has not set data and the source is not a run.
    """
    run = RunDirectory(Path(config.init or "")).config()
    if run is None:
        if not given and config.data in (DataConfig(), digits().data):
            raise ConfigError(f"{config.init} is not a run, so its data is unknown; set --data and --data.path")
        return ""
    same = (config.data.name, config.data.path) == (run.data.name, run.data.path)
    words = [f"{run.data.name} {run.data.path}".strip()] * same
    for name in ("mean", "std"):
        if getattr(DataConfig(), name) != getattr(run.data, name) == getattr(config.data, name):
            words.append(f"{name} {getattr(run.data, name)}")
    words += [f"evaluation {name}" for name in config.evaluation if name in run.evaluation]
    return f"data: {', '.join(words)} (from the run)" if words else ""


def sized(config: Config) -> Config:
    """Returns the configuration with the image size of the source, if neither the data nor the user determines the image size."""
    if config.init is None or config.model.image_size is not None or config.data.name not in PICTURES:
        return config
    return replace(config, model=config.model.but(image_size=read(Path(config.init), Given()).config.image_size))
