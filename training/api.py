"""Runs moespec from Python: `train` does what `moespec train` does and returns the `Run`.

An exception has the same text as the error message of the command. Ctrl-C, or an interrupt of the notebook kernel, saves the current step
and raises `moespec.models.errors.Interrupted`, a KeyboardInterrupt.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from moespec.backends.pytrees import leaves, unflatten
from moespec.spec.errors import ConfigError
from moespec.spec.own import own_name, shown
from moespec.training.commandline.chosen import check_functions, check_written, chosen
from moespec.training.commands.evaluate import EvaluateArguments, evaluate_command
from moespec.training.commands.predict import PredictArguments, predict_command
from moespec.training.commands.train import train_command
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import Section, digits, flat, update
from moespec.training.configuration.own import load_written
from moespec.training.loop.hooks import Hook
from moespec.training.loop.progress import called
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.reports.predictions import Prediction
from moespec.training.reports.report import write_report
from moespec.training.runs import label, load_run
from moespec.training.weights.loading import load as load

__all__ = ["Run", "train"]


class Run:
    """The run in the folder `path`. `config` is the resolved configuration. Raises RunError if the folder holds no run."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.config = RunDirectory(self.path).begun_config()

    def __repr__(self) -> str:
        """Describes the model, the data and the last evaluation of the run in one line."""
        last, config = self.log("evaluation")[-1:], self.config
        facts = [label(config), config.data.name, config.backend, f"{config.training.steps} steps"]
        facts += [f"validation {called(one)} {one['accuracy']:.4f} at step {one['step']}" for one in last]
        return f"<Run {str(self.path)!r}: {', '.join(facts)}>"

    def log(self, kind: str = "train") -> list[dict[str, Any]]:
        """Returns the lines of one kind ("train", "evaluation" or "evaluation/NAME") in metrics.jsonl. Each line contains its "step"."""
        return read_log(self.path, kind)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """Runs `moespec evaluate` with options as keyword arguments, such as `knn=[20]`. Prints the results and returns them by name."""
        return evaluate_command(_updated(EvaluateArguments(run=self.path), options))

    def predict(self, folder: str | PathLike[str], **options: Any) -> list[Prediction]:
        """Runs `moespec predict` with options as keyword arguments, such as `top=1`. Prints the table and returns all predictions."""
        return predict_command(_updated(PredictArguments(run=self.path, folder=Path(folder)), options))

    def report(self) -> Path:
        """Returns the path of report.html. If the run is unfinished or has no report, this call writes the report."""
        path = self.path / "report.html"
        if not (path.is_file() and RunDirectory(self.path).finished(self.config)):
            loaded = load_run(self.path)
            write_report(loaded.backend, loaded.config, loaded.dataset, self.path, loaded.params, devices=None)
        return path


def train(
    config: Config | str | PathLike[str] | None = None,
    *,
    run: str | PathLike[str] | None = None,
    resume: bool = False,
    override: bool = False,
    hooks: Sequence[Hook] = (),
    **tables: Any,
) -> Run:
    """Trains as `moespec train` does, with the same checks, checkpoints and report, and returns the run.

    config: a recipe (`moespec list recipes`), a TOML file, or a `Config`; default: `digits` or, with `resume`, the run's configuration.
    tables: values that override fields of `config`, as in a TOML file: `backend="jax", training={"steps": 300}`. User-defined objects may
    be passed directly or by name (docs/own-objects.md). run, resume, override: see `moespec train`. A finished run is not trained again.
    hooks: functions that are called with an `AfterStep` after each step.

    Raises ConfigError, DataError or RunError before the first step, RunError if the run diverges, and Interrupted on Ctrl-C or a signal.
    """
    if not all(map(callable, hooks)):
        raise ConfigError(f"hooks={shown(hooks)}: expected functions of one argument")
    named = ((tuple(map(str, place)), value) for place, value in leaves(tables))
    tables = unflatten({place: _named(".".join(place), value) for place, value in named})
    base, flags = (config, []) if isinstance(config, Config) else (digits(), ["--resume"] * bool(resume))
    given = {**flat(tables), "config": None if base is config else config, "run": run}
    words = [*flags, *(f"--{name}={value}" for name, value in given.items() if value is not None)]
    load_written(words)
    settings = update(chosen(words, base), tables)
    check_written(words, settings)
    check_functions(words, settings)
    path = None if run is None else Path(run)
    return Run(train_command(settings, run=path, resume=resume, override=override, hooks=hooks))


def _updated(given: Section, options: dict[str, Any]) -> Section:
    """Updates the arguments of a command, `given`, with `options`. Imports the modules that the option `trust` names."""
    load_written([f"--{name}={value}" for name, value in options.items() if name == "trust"])
    return update(given, options)


def _named(option: str, value: Any) -> Any:
    """Returns the value of an option, or the name of the value if the value is a user-defined object."""
    value = value.item() if isinstance(value, np.generic) else value
    plain = value is None or isinstance(value, str | int | float | list | tuple | PathLike)
    return value if plain else own_name(option, value)
