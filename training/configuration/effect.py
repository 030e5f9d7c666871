"""Errors about options that have no effect. The condition of each stands on its field (`moespec.models.options`)."""

from collections.abc import Iterable
from typing import Any

from moespec.models.options import no_effect
from moespec.spec.errors import ConfigError
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset
from moespec.training.data.options import DataConfig

__all__ = ["check_effect", "check_share"]


def check_effect(written: Iterable[str], *configs: Config) -> None:
    """ConfigError for the first option of `written` (dotted names) that has another value than its default, or than none, and no
    effect in any of the configurations."""
    for name in written:
        value, default = _value(configs[-1], name), _value(Config(), name)
        if value in (None, False, 0.0, default):
            continue
        reasons = [no_effect(config, name) for config in configs]
        if all(reasons):
            raise ConfigError(f"{name}={value!r} has no effect here: {reasons[-1]}")


def _value(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def check_share(config: Config, dataset: Dataset) -> None:
    """ConfigError if the configuration says how many images are held out, and the data have a validation part."""
    share = config.data.validation_share
    if share != DataConfig().validation_share and not dataset.held_out:
        raise ConfigError(
            f"data.validation_share={share!r} has no effect here: the data set has its own validation split"
        )
