"""Compares the configuration of a resumed run with the configuration in its last checkpoint."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from moespec.models.errors import CheckpointError
from moespec.training.configuration.config import Config, ModelConfig
from moespec.training.configuration.configfile import flat, with_decay, with_eval_take, with_model, without_jitter
from moespec.training.loop.resolve import model_config

__all__ = ["FREE", "NUMBER", "changes", "check_evaluated", "described", "keys", "of_data"]

FREE = frozenset(
    {
        *("backend", "data.prefetch", "training.compile", "training.recompute", "training.log_every", "training.keep"),
        *("training.cuda_graph", "training.patience"),
        *("training.evaluate_every", "training.checkpoint_every", "data.workers"),
        *("mesh.data", "mesh.fsdp", "mesh.expert", "mesh.transport", "mesh.timeout"),
    }
)
"""Fields that may change when a run resumes. `training.steps` may also change if all completed steps keep their learning rates."""

BESIDES = ("evaluation.", "log")
"""Prefixes of fields that do not affect checkpoints: additional evaluations and loggers."""

EVALUATED = (
    *("model.", "data.name", "data.validation_share", "training.loss"),
    *("data.mean", "data.std", "data.resize", "data.background"),
)
"""Names, or prefixes of names, of fields that affect the result of an evaluation."""

NUMBER = "number of the training images"
"""The entry of a data stamp that determines the order of the images."""

Changes = dict[str, tuple[Any, Any]]
"""Dotted name of a field -> the previous value, the current value."""


def changes(recorded: Mapping[str, Any], config: Config) -> Changes:
    """The fields in which `config` differs from the configuration that a checkpoint recorded.

    If the record lacks a field, the field's previous value is its default or, in the section `model`, the default of
    the named model. `with_decay` derives from the record which parameters had weight decay. Fields that exist only in
    the record are ignored, since records of early 0.1 versions contain options of other routers.
    """
    plain = with_model(Config(model=ModelConfig(config.model.name)), None, getattr(config.model, "router", None))
    before, now, defaults = (
        flat(table) for table in (with_eval_take(with_decay(without_jitter(recorded))), asdict(config), asdict(plain))
    )
    of_model = {f"model.{name}": value for name, value in vars(model_config(ModelConfig(config.model.name))).items()}

    def value(table: Mapping[str, Any], key: str) -> Any:
        given = table.get(key, defaults.get(key))
        return of_model.get(key) if given is None else given

    pairs = {key: (value(before, key), value(now, key)) for key in now}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and not key.startswith(BESIDES)}


def check_evaluated(record: Mapping[str, Any], config: Config, where: str) -> None:
    """Raises CheckpointError if a checkpoint was trained with a different model or different data than `config` describes."""
    changed = changes(record["config"], config)
    if wrong := {key: pair for key, pair in changed.items() if key.startswith(EVALUATED)}:
        raise CheckpointError(f"{where}, step {record['step']}: trained with another config.toml: {described(wrong)}")


def of_data(recorded: Mapping[str, Any], stamp: Mapping[str, Any]) -> Changes:
    """The differences between two data stamps (`Dataset.stamp`). Entries that exist in only one stamp are ignored."""
    return {key: (recorded[key], now) for key, now in stamp.items() if recorded.get(key, now) != now}


def described(changed: Changes) -> str:
    """Describes each changed field with its previous and current values."""

    def text(key: str, before: Any, now: Any) -> str:
        digest = " of the " in key and isinstance(now, str)  # a data stamp
        return f"{key} changed" if digest else f"{key} is {before!r} there, {now!r} here"

    return "; ".join(text(key, *pair) for key, pair in changed.items())


def keys(text: str) -> set[str]:
    """The fields that a TOML configuration sets."""
    return set(flat(tomllib.loads(text))) - {"format"}
