"""Converts the state of a run to and from checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.errors import CheckpointError, RunError
from moespec.models.families import draws
from moespec.models.pytrees import flatten, nested
from moespec.training.configuration.config import Config
from moespec.training.data.loader import data_position
from moespec.training.loop import checkpoint, hash_tables
from moespec.training.loop.config_compatibility import NUMBER, check_evaluated, described, of_data
from moespec.training.loop.resolve import model_config
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.objectives.table import shapes_of
from moespec.version import version

__all__ = ["Start", "begin", "record_of", "settle", "trained_params"]

GENERATOR = "threefry2x32-20"
"""The generator of noise and dropout. Checkpoints without this entry come from early 0.1 versions with another generator."""


class Start(NamedTuple):
    """The start of a run: the state of the backend, the number of finished steps, the seconds of training, and the recorded overrides.

    pending: evaluations of this step that a signal prevented; None means the run's own images. logged: the number of log lines.
    """

    state: Any
    step: int
    seconds: float
    overrides: list[Any]
    pending: list[str | None]
    logged: int = 0


def begin(
    B: Backend,
    config: Config,
    directory: RunDirectory,
    *,
    stamp: Mapping[str, Any],
    initial: Callable[[], dict[str, Any]],
) -> Start:
    """Returns the state of the newest checkpoint in the folder, or a state with the initial parameters (NumPy) from `initial`.

    stamp: `Dataset.stamp` of the data. Raises CheckpointError for a checkpoint that is damaged or used another seed, batch size, data
    set or noise generator, and RunError for an initial parameter that is not finite.
    """
    model, seed = model_config(config.model), config.training.seed
    alone = B.sizes.devices == 1
    saved = directory.load(shapes_of(config, model), whole=alone)
    if saved is None:
        params = initial()
        for name, value in flatten(params).items():
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                raise RunError(f"the initial parameter {name} contains NaN or infinity")
        return Start(B.init_state(B.from_numpy(params) if alone else params, config.optimizer), 0, 0.0, [], [])
    step = saved.record["step"]
    hash_tables.check(saved.state["params"], model, str(directory.checkpoints))
    if draws(model, config.training.batch) and saved.record.get("generator") != GENERATOR:
        by = saved.record.get("version", "0.1, since it records none")
        why = f"the gating noise of this run was not drawn by {GENERATOR}"
        advice = f"resume with the moespec version that started it ({by}), or start a new run"
        raise CheckpointError(f"{directory.checkpoints}, step {step}: {why}; {advice}")
    if data := of_data(saved.record.get("stamp", {}), stamp):
        raise CheckpointError(f"{directory.checkpoints}, step {step}: the data has changed: {described(data)}")
    expected = {
        "random": {"seed": seed, "step": step},
        "data": data_position(stamp[NUMBER], config.training.batch, step),
    }
    for key, value in expected.items():
        if saved.record[key] != value:
            why = f"the seed, batch or number of training images, now {stamp[NUMBER]}, has changed"
            told = f"the checkpoint has {key} {saved.record[key]}, but this run has {value} ({why})"
            raise CheckpointError(f"{directory.checkpoints}, step {step}: {told}")
    read = saved.state
    if alone and B.name != "numpy":  # the NumPy backend keeps float64
        read = nested({path: leaf if path == "step" else np.float32(leaf) for path, leaf in flatten(read).items()})
    try:
        state = B.import_state(read, config.optimizer)
    except ValueError as error:  # this call is the first to read the arrays
        raise CheckpointError(f"{directory.checkpoints}, step {step}: {error}") from error
    record = saved.record
    return Start(
        state, step, record["seconds"], record.get("overrides", []), record.get("owed", []), record.get("logged", 0)
    )


def record_of(
    B: Backend, config: Config, step: int, *, stamp: Mapping[str, Any], seconds: float, overrides: list[Any]
) -> dict[str, Any]:
    """The record of a checkpoint after `step` steps and `seconds` of training."""
    return {
        "step": step,
        "config": asdict(config),
        "overrides": overrides,
        "random": {"seed": config.training.seed, "step": step},
        "generator": GENERATOR,
        "data": data_position(stamp[NUMBER], config.training.batch, step),
        "stamp": dict(stamp),
        "backend": B.name,
        "seconds": seconds,
        "version": version(),
    }


def settle(B: Backend, directory: RunDirectory, step: int, noted: Mapping[str, Any]) -> None:
    """Records `noted` (the pending evaluations and the best evaluation) in the checkpoint of `step`."""
    if B.process == 0:
        path = directory.checkpoints / f"{step:08d}"
        checkpoint.amend(path, {**checkpoint.read_record(path), **noted})


def trained_params(
    directory: RunDirectory, config: Config, *, step: int | str | None = None, average: bool = False
) -> tuple[dict[str, Any], int]:
    """Returns the parameters (NumPy) in a checkpoint (the newest, `step` or "best"), and the step of the checkpoint.

    average: whether to use the averages of the parameters where available. Raises CheckpointError if there is no checkpoint, if the
    checkpoint is damaged, or if `config` describes another model or other data.
    """
    model = model_config(config.model)
    place = directory.place(step)
    if place is None:
        raise CheckpointError(f"{directory.checkpoints}: no checkpoint yet")
    check_evaluated(checkpoint.read_record(place), config, str(directory.checkpoints))
    saved = checkpoint.read(place, shapes_of(config, model))
    hash_tables.check(saved.state["params"], model, str(directory.checkpoints))
    params, averages = saved.state["params"], saved.state.get("ema", {}) if average else {}
    return nested(flatten(params) | flatten(averages)), saved.record["step"]
