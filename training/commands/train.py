"""The command `moespec train`."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moespec.backends.contract import Backend
from moespec.models.errors import RunError
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import Configured, check_functions, check_written, chosen
from moespec.training.commandline.parse import parse
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits, flat
from moespec.training.configuration.length import notes
from moespec.training.data.dataset import Dataset
from moespec.training.data.datasets import check_share
from moespec.training.data.transforms import try_transform
from moespec.training.evaluation.classes import beside
from moespec.training.loop.best import check_measure, sentences
from moespec.training.loop.devices import check_layout, check_same, connected, led
from moespec.training.loop.evaluations import EvaluationSet, load_sets
from moespec.training.loop.hooks import Hook
from moespec.training.loop.progress import called
from moespec.training.loop.resolve import choose_backend, load_backend, load_data, resolve
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.loop.trackers import check_log, loggers
from moespec.training.loop.train import train
from moespec.training.objectives.table import objective_of
from moespec.training.reports.report import write_report
from moespec.training.runs import label
from moespec.training.study import outcome
from moespec.training.transfer.start import starting_params
from moespec.version import version

__all__ = ["main", "train_command"]


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Configured):
    """Train a vision model with mixture-of-experts layers and write a report.

    Without options, trains a Soft MoE ViT on 1 797 images of digits; try also --model mixer_tiny or sparse_mlp_tiny. A TOML file
    (--config) can set all options; the command line takes precedence. This help lists only the options that apply to the selected
    model, router and data. Add --model, --router, --data, --optimizer.name, --schedule.name, --data.jitter or --data.randaugment
    to --help to list the options of another choice. The run's folder holds config.toml, metrics.jsonl, checkpoints/ and
    report.html.
    """

    run: Path | None = None
    """folder of the run (default: runs/DATA-ROUTER-BACKEND; for models other than ViT, the model's name instead of the router)"""
    resume: bool = False
    """resume from the run's last checkpoint with the run's configuration"""
    override: bool = False
    """with --resume: allow a changed configuration and record the change in the checkpoints"""


def main(words: list[str]) -> None:
    """Runs the command."""
    parsed = parse("train", TrainArguments, words, settings=chosen(words, digits()))
    check_written(words, parsed.settings)
    check_functions(words, parsed.settings)
    train_command(parsed.settings, run=parsed.run, resume=parsed.resume, override=parsed.override)


def train_command(
    config: Config, *, run: Path | None, resume: bool, override: bool, note: str = "", hooks: Sequence[Hook] = ()
) -> Path:
    """Trains or resumes a run, writes the report, and returns the folder. Does not train a finished run again. note: a line to print."""
    if override and not resume:
        raise RunError("--override requires --resume")
    check_log(config)
    for name, text in {"run": run and str(run), **flat(asdict(config))}.items():
        if isinstance(text, str) and text != text.encode(errors="ignore").decode():
            raise ConfigError(f"{name}={text!r}: expected UTF-8 text")
    backend, reason = choose_backend(config.backend)
    with connected(backend, config.mesh) as B:

        def say(text: str) -> None:
            if B.process == 0:
                print(on_one_line(text))  # names of folders and files may contain line breaks

        if note:
            say(note)
        if reason:
            say(f"backend: {backend} ({reason})")

        def first(dataset: Dataset) -> None:
            """Rejects an invalid configuration before any image is decoded."""
            settled = resolve(config, dataset, backend)
            directory = RunDirectory(_folder(run, settled, backend))
            check_layout(B, settled)
            # The length of an epoch is unknown until broken images are excluded.
            if resume and config.training.epochs is None and B.process == 0 and directory.begun():
                directory.compared(settled, (), resume=True, override=override)

        dataset = load_data(config, first)
        given, config = config, resolve(config, dataset, backend)
        dataset = objective_of(config).read(config, dataset)
        if not resume:
            check_share(config.data, dataset)
        try_transform(dataset, config.data)
        check_layout(B, config)
        check_same(B, config, dataset, version())
        sets = load_sets(config, dataset)
        check_measure(config, outcome.measures(config, {name: one.numbers for name, one in sets.items()}))
        for note in (*(f"data: {note}" for note in dataset.notes), *notes(given, config)):
            say(note)
        if B.sizes.devices > 1:
            say(f"devices: {B.sizes}" + (f", in {B.processes} processes" if B.processes > 1 else ""))
        path = _folder(run, config, backend)
        _train(B, config, dataset, path, sets, hooks, resume=resume, override=override, say=say)
        return path


def _folder(run: Path | None, config: Config, backend: str) -> Path:
    """Returns the folder of a run. The default name combines the names of the data, the router and the backend."""
    return Path(run or f"runs/{config.data.name.rpartition(':')[2]}-{label(config)}-{backend}")


def _train(
    B: Backend,
    config: Config,
    dataset: Dataset,
    path: Path,
    sets: Mapping[str, EvaluationSet],
    hooks: Sequence[Hook],
    *,
    resume: bool,
    override: bool,
    say: Callable[[str], None],
) -> None:
    directory, there = RunDirectory(path), os.path.exists(path)
    # The folder of the run is created last, after all the work that can fail before the first training step.
    begun = led(B, lambda: {"begun": directory.begun()})["begun"]
    initial = None if begun else starting_params(config, dataset, lazily=B.sizes.devices > 1)

    def claim() -> dict[str, bool]:
        stack.enter_context(directory.locked())
        if resume and not begun:
            say(f"{path}: nothing to resume, starting at step 0")
        finished = directory.finished(config)
        how: Any = {"resume": resume or finished, "override": override, "dataset": dataset}
        for aside in directory.claim(config, **how):
            say(f"{aside}: moved the cooldown checkpoint aside; resuming from the previous one")
        if not finished:
            say(f"run: {path}")
        return {"finished": finished}

    def report() -> dict[str, bool]:
        params, _ = trained_params(directory, config)
        if not finished or not (path / "report.html").is_file():
            write_report(load_backend(B.name), config, dataset, path, params, devices=B.sizes.devices)
        last = read_log(path, "evaluation", some=True)[-1]
        say(f"{path}: finished{' already' if finished else ''}, {last['step']} steps in {last['seconds']:.0f} s")
        best = sentences(config, directory.best(config.training.keep_best), last["step"])
        count = f" ({round(last['accuracy'] * last['images'])} of {last['images']})" if "loss" in last else ""
        for line in (*best, f"validation {called(last)} {last['accuracy']:.4f}{count}", *beside(last, dataset)):
            say(line)
        if "average" in last:
            say(f"validation accuracy of the moving average {last['average']['accuracy']:.4f}")
        say(f"report: {path / 'report.html'}")
        return {}

    with ExitStack() as stack:
        finished = led(B, claim)["finished"]
        if not finished:
            try:
                of_log = stack.enter_context(loggers(B, config, path, begun=begun, say=say))
            except ConfigError:
                if B.process == 0 and not there:
                    shutil.rmtree(path, ignore_errors=True)  # the folder is new and holds no results
                raise
            train(B, config, dataset, path, initial=initial, sets=sets, hooks=[*of_log, *hooks])
        led(B, report)
