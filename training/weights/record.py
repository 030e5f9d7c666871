"""Holds a model's configuration and parameters, and converts the configuration to plain values for JSON and back."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from moespec.models.errors import CheckpointError
from moespec.models.families import Config, kinds
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = ["Weights", "described", "images_of", "named_classes", "of_description", "with_fields"]

Model = TypeVar("Model")


@dataclass(frozen=True)
class Weights:
    """config: the configuration of the model. params: the parameters (NumPy). about: facts for the model card, by title.

    classes: class names in logit order, if known.
    images: how to convert a picture into a model input, if known: `mean` and `std` (lists), `resize` and `background` of `DataConfig`.
    """

    config: Config
    params: Params
    about: Mapping[str, str]
    classes: tuple[str, ...] = ()
    images: Mapping[str, Any] = field(default_factory=dict)


def described(config: Config) -> dict[str, Any]:
    """Returns the configuration as plain values, with `family` (vit, mixer or sparse_mlp) and every field."""
    names = {kind: name for name, kind in kinds().items()}
    return {"family": names[type(config)], **asdict(config)}


def named_classes(names: Any, config: Config, where: str) -> tuple[str, ...]:
    """Returns the class names in a file. Raises CheckpointError unless the list is empty or has one name per class."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{where}: expected a list of class names")
    if names and len(names) != config.classes:
        raise CheckpointError(f"{where}: expected {config.classes} class names, got {len(names)}")
    return tuple(names)


def images_of(values: Any, where: str) -> dict[str, Any]:
    """Parses `Weights.images` from a file. Raises CheckpointError unless the entry is complete or empty."""
    try:
        numbers = {name: [float(number) for number in values.pop(name)] for name in ("mean", "std") if values}
        return {**numbers, "resize": int(values["resize"]), "background": str(values["background"])} if numbers else {}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: expected mean, std, resize and background ({error})") from error


def of_description(values: Mapping[str, Any], where: str) -> Config:
    """The inverse of `described`. Raises a ConfigError that begins with `where` if the values describe no model."""
    fields = dict(values)
    family = fields.pop("family", None)
    if not isinstance(family, str) or family not in kinds():
        raise ConfigError(f"{where}: family={family!r}: expected one of {', '.join(kinds())}")
    config: Config = _made(kinds()[family], kinds()[family], fields, where)
    return config


def with_fields(config: Model, values: Mapping[str, Any], where: str) -> Model:
    """Returns the configuration with some fields replaced. Raises a ConfigError that begins with `where`, as `of_description` does."""
    model: Model = _made(type(config), partial(replace, config), values, where)  # type: ignore[type-var]
    return model


def _made(kind: type, make: Callable[..., Any], values: Mapping[str, Any], where: str) -> Any:
    """Calls `make(**values)`. Raises ConfigError unless all values are fields of `kind` and are valid."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{where}: {name}={values[name]!r}: {kind.__name__} has only {', '.join(known)}")
    try:
        return make(**values)
    except TypeError as error:  # a field without a default is missing
        raise ConfigError(f"{where}: {str(error).partition(' ')[2]}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
