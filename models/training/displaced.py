"""Fields that stand for the same thing: one that is given takes the place of what was set before."""

from collections.abc import Mapping
from typing import Any

from moespec.backends.optimizer import OptimizerConfig
from moespec.models.training.config import LENGTHS, TrainingConfig

__all__ = ["displaced"]


def displaced(section: Any, given: Mapping[str, Any]) -> dict[str, None]:
    """The fields of a section of a configuration that what is `given` takes the place of, as None.

    The name of another optimiser displaces the options of this one; a number of steps, epochs or examples the others.

    >>> displaced(TrainingConfig(steps=5), {"epochs": 2.0})
    {'steps': None, 'epochs': None, 'examples': None}
    """
    if isinstance(section, OptimizerConfig) and given.get("name", section.name) != section.name:
        return dict.fromkeys(section.options())
    if isinstance(section, TrainingConfig) and any(given.get(name) is not None for name in LENGTHS):
        return dict.fromkeys(LENGTHS)
    return {}
