"""Additional loggers of a run, `--log NAME[,NAME]`: Weights & Biases, or a user-defined function.

The log (`moespec.training.loop.runlog`) writes TensorBoard files. Weights & Biases receives the same numbers under the same
names, such as `train/loss`. Only process 0 imports wandb, which reads its environment variables (WANDB_MODE, ...). trackers.json in the
folder of the run stores the id of the wandb run, so that a resumed run continues the same wandb run.
"""

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from moespec.backends.contract import Backend
from moespec.models.checks import check_installed
from moespec.models.files import read_record, signed, write_atomically
from moespec.spec.errors import ConfigError
from moespec.spec.own import own_function
from moespec.training.configuration.config import TRACKERS, Config
from moespec.training.loop.devices import led
from moespec.training.loop.hooks import AfterStep, Hook
from moespec.training.loop.runlog import scalars

__all__ = ["check_log", "loggers"]

PROJECT, NAME = "moespec", "trackers.json"


def check_log(config: Config) -> None:
    """Raises ConfigError if a logger in `config.log` needs a package that is not installed, or is a function that cannot be imported."""
    for name in config.logs:
        if name not in TRACKERS:
            own_function("log", name, load=True)
        else:
            check_installed(f"log={name!r}", name, TRACKERS[name])


@contextmanager
def loggers(B: Backend, config: Config, run: Path, *, begun: bool, say: Callable[[str], None]) -> Iterator[list[Hook]]:
    """Yields the hooks of `config.log` on process 0, and closes the hooks at the end. begun: whether the run resumes from a checkpoint.

    Raises ConfigError for a logger that fails to start. A tracker that cannot resume its earlier run starts a new run. After the start,
    errors of a logger do not stop the run: the first error of each logger is printed as a warning.
    """
    hooks: dict[str, Any] = {}
    failed: set[str] = set()

    def start() -> dict[str, str]:
        file = run / NAME
        ids = _known(file) if begun else {}
        for name in config.logs:
            if name == "wandb":
                hooks[name] = hook = _Wandb(config, run, ids.get(name), say)
                ids[name] = hook.id
                write_atomically(file, signed(ids))
            elif name not in TRACKERS:
                hooks[name] = hook = _told(name, own_function("log", name, load=True), config, run)
                if not callable(hook):
                    raise ConfigError(f"log={name!r}: returned {hook!r}, expected a hook to call after each step")
        return ids

    def guarded(name: str, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # a logger may raise any exception
            if name not in failed:
                tqdm.write(f"warning: log={name!r}: {type(error).__name__}: {error}; the run continues")
            failed.add(name)

    try:
        led(B, start)
        yield [partial(guarded, name, hook) for name, hook in hooks.items()]
    finally:
        for name, hook in hooks.items():
            guarded(name, getattr(hook, "close", lambda: None))


def _known(file: Path) -> dict[str, str]:
    """Returns the run ids of the trackers. Ignores a damaged file with a warning. Files from version 0.2 have no checksum."""
    try:
        ids: dict[str, str] = read_record(file, always=False) if file.exists() else {}
        if wrong := [name for name, each in ids.items() if not isinstance(each, str) or not each]:
            raise ValueError(f"damaged: {wrong[0]}={ids[wrong[0]]!r:.40} is not a run name")
    except (OSError, ValueError) as error:
        warnings.warn(f"{file}: {error}; the trackers start new runs", stacklevel=1)
        return {}
    return ids


class _Wandb:
    """A hook that sends the numbers that metrics.jsonl contains for a step to Weights & Biases."""

    def __init__(self, config: Config, run: Path, known: str | None, say: Callable[[str], None]) -> None:
        start = partial(_started, importlib.import_module("wandb"), run.resolve().name, config)
        try:
            self._run = _told("wandb", start, known)
        except ConfigError as error:
            if known is None:
                raise
            say(f"{error}; cannot resume the wandb run {known}")
            self._run = _told("wandb", start, None)
        self.id, self.close = self._run.id, self._run.finish
        say(f"log: wandb {'resumes' if self.id == known else 'starts'} run {self.id}")

    def __call__(self, after: AfterStep) -> None:
        lines = {"train": after.logged, **after.evaluations}
        if values := dict(pair for kind, line in lines.items() for pair in scalars(line, kind)):
            self._run.log({"step": after.done, **values})


def _started(wandb: Any, title: str, config: Config, known: str | None) -> Any:
    project, how = os.environ.get("WANDB_PROJECT", PROJECT), {"id": known, "resume": "allow" if known else None}
    run = wandb.init(project=project, name=title, config=asdict(config), **how)
    run.define_metric("*", step_metric="step")  # the step counter of wandb cannot go back when a run resumes
    return run


def _told(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # no account, no network, or any exception in the user's function
        raise ConfigError(f"log={name!r}: {type(error).__name__}: {error}") from error
