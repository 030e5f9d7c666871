"""The application from Python: `train` does what `moespec train` does, and returns the `Run`.

An error is an exception whose text is the line that the command shows. Ctrl-C, or in a notebook to interrupt the kernel, saves
the step and raises `moespec.models.errors.Interrupted`, a KeyboardInterrupt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from moespec.models.checks import check_fields
from moespec.spec.errors import SpecError
from moespec.training.commandline.chosen import OfRun, check_functions, check_written, chosen
from moespec.training.commands.evaluate import EvaluateArguments, evaluate_command
from moespec.training.commands.predict import PredictArguments, Prediction, predict_command
from moespec.training.commands.train import train_command
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits, flat, update
from moespec.training.loop.hooks import Hook
from moespec.training.loop.progress import called
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.reports.report import write_report
from moespec.training.runs import label, load_run

__all__ = ["Run", "train"]

Arguments = TypeVar("Arguments", bound=OfRun)


@dataclass(frozen=True, repr=False)
class Run:
    """The run in a folder. Raises RunError where there is none."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        RunDirectory(self.path).begun_config()

    def __repr__(self) -> str:
        """One line: what the run trains, and how far it is."""
        try:
            config, last = self.config, self.log("evaluation")[-1:]
        except SpecError as error:
            return f"<Run {str(self.path)!r}: {error}>"
        known = [f"validation {called(one)} {one['accuracy']:.4f} at step {one['step']}" for one in last]
        facts = [label(config), config.data.name, config.backend, f"{config.training.steps} steps", *known]
        return f"<Run {str(self.path)!r}: {', '.join(facts)}>"

    @property
    def config(self) -> Config:
        """The resolved configuration; `train(run.config, run="runs/y", ...)` begins another run with it."""
        return RunDirectory(self.path).begun_config()

    def log(self, kind: str = "train") -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of one kind: "train", "evaluation" or "evaluation/NAME". Each has its "step"."""
        return read_log(self.path, kind)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """`moespec evaluate` with its options as keywords, `evaluate(knn=[20])`: prints the results, and returns them by name."""
        return evaluate_command(_with(EvaluateArguments(run=self.path), options))

    def predict(self, folder: str | PathLike[str], **options: Any) -> list[Prediction]:
        """`moespec predict` with its options as keywords, `predict("new", top=1)`: prints the table, and returns every picture."""
        return predict_command(_with(PredictArguments(run=self.path, folder=Path(folder)), options))

    def report(self) -> Path:
        """The path of report.html, which `train` writes at the end. Without it, or if a checkpoint is newer, it is written first."""
        path, newest = self.path / "report.html", RunDirectory(self.path).place()
        if path.is_file() and newest is not None and newest.stat().st_mtime <= path.stat().st_mtime:
            return path
        loaded = load_run(self.path)
        return write_report(loaded.backend, loaded.config, loaded.dataset, self.path, loaded.params, devices=None)


def train(
    config: Config | str | PathLike[str] = "digits",
    *,
    run: str | PathLike[str] | None = None,
    resume: bool = False,
    override: bool = False,
    hooks: Sequence[Hook] = (),
    **tables: Any,
) -> Run:
    """Trains as `moespec train` does, with the same checks, checkpoints and report, and returns the run.

    config: a recipe (`moespec list recipes`), a TOML file, or a `Config`. tables: what replaces its fields, as a TOML file would:
    `backend="jax", training={"steps": 300}`. run, resume, override: as of the command; a run that is finished is not trained
    again. hooks: called with an `AfterStep` after each step (`moespec.training.loop.hooks`).

    Raises ConfigError, DataError or RunError before the first step, RunError if the run diverges, and Interrupted.
    """
    given = {**flat(tables), **({} if isinstance(config, Config) else {"config": fspath(config)})}
    words = [f"--{name}={value}" for name, value in {**given, **({} if run is None else {"run": fspath(run)})}.items()]
    base = chosen([*words, *["--resume"] * resume], config if isinstance(config, Config) else digits())
    settings = update(base, tables)
    check_written(words, settings)
    check_functions(words, settings)
    path = None if run is None else Path(run)
    return Run(train_command(settings, run=path, resume=resume, override=override, hooks=hooks))


def _with(arguments: Arguments, options: Mapping[str, Any]) -> Arguments:
    """The arguments of a command, with the checks of a command line."""
    arguments = update(arguments, options)
    check_fields("", arguments)
    return arguments
