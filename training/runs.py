"""Loads runs: the configuration, the data, and the parameters of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.errors import DataError
from moespec.training.configuration.config import Config
from moespec.training.configuration.modelconfig import VitSection
from moespec.training.data.dataset import Dataset
from moespec.training.loop.resolve import choose_backend, load_backend, load_data
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory

__all__ = ["LoadedRun", "label", "left_out", "load_run"]


class LoadedRun(NamedTuple):
    """A run: the backend, the configuration, the data, the parameters (NumPy) of a checkpoint, and the step of the checkpoint."""

    backend: Backend
    config: Config
    dataset: Dataset
    params: dict[str, Any]
    step: int


def load_run(run: Path, backend: str | None = None, step: int | str | None = None) -> LoadedRun:
    """Loads a run on `backend` (default: the run's backend) from the checkpoint at `step` (default: the newest checkpoint)."""
    directory = RunDirectory(run)
    config = directory.begun_config()
    name, _ = choose_backend(backend or config.backend)
    params, found = trained_params(directory, config, step=step)
    dataset = load_data(config)
    directory.check_classes(dataset.classes)
    return LoadedRun(load_backend(name), config, dataset, params, found)


def label(config: Config) -> str:
    """Returns the name of a run for output: the router of a ViT, or the name of any other model."""
    return str(config.model.router).replace(":", ".") if isinstance(config.model, VitSection) else config.model.name


def left_out(path: Path, wrong: Sequence[str], count: int) -> list[str]:
    """Returns lines about the unreadable pictures, if any, among `count` pictures. Raises DataError if no picture is readable."""
    if len(wrong) == count:
        raise DataError(f"{path}: none of {count} images can be read: {wrong[0]}" if path.is_dir() else wrong[0])
    return [f"skipped {len(wrong)} of {count} images, which cannot be read:", *wrong] if wrong else []
