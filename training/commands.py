"""What the commands of `moespec` do. `moespec.training.cli` parses their arguments."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.checks import check_output
from moespec.models.errors import DataError, RunError
from moespec.models.files import write_atomically
from moespec.models.memory import check_limits
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.training.compilation import pays
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import flat
from moespec.training.configuration.length import notes
from moespec.training.configuration.modelconfig import VitSection
from moespec.training.configuration.option_constraints import check_share
from moespec.training.data.dataset import Dataset
from moespec.training.data.datasets import PICTURES, load_others
from moespec.training.data.folder import find_pictures
from moespec.training.data.pictures import Pictures, read_image
from moespec.training.data.picturesets import SKIP, broken
from moespec.training.data.transforms import try_transform
from moespec.training.evaluation.evaluate import evaluation_size
from moespec.training.evaluation.metrics import line
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.inspection.inspect_run import draw, make_route, png, prediction
from moespec.training.interruption import Interruption, check
from moespec.training.loop import hash_tables
from moespec.training.loop.devices import check_layout, check_same, connected, led
from moespec.training.loop.evaluations import Evaluations, EvaluationSet, load_sets
from moespec.training.loop.progress import called, told
from moespec.training.loop.resolve import choose_backend, load_backend, load_data, model_config, resolve
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.loop.trackers import check_log, loggers
from moespec.training.loop.train import train
from moespec.training.objectives.table import objective_of
from moespec.training.reports.cost import described, milliseconds
from moespec.training.reports.curves import in_order
from moespec.training.reports.report import write_report
from moespec.training.transfer.start import starting_params
from moespec.version import version

__all__ = [
    "LoadedRun",
    "configuration",
    "evaluate_command",
    "hash_table_command",
    "inspect_command",
    "left_out",
    "load_run",
    "read_data",
    "scan_command",
    "train_command",
]

INSPECTED = 16
"""Pictures of a folder that are drawn, at most."""


def train_command(config: Config, *, run: str | None, resume: bool, override: bool, note: str = "") -> None:
    """Trains, or goes on, and writes the report; says so when the run is already finished. note: said first."""
    if override and not resume:
        raise RunError("--override changes a run that goes on; it needs --resume")
    check_log(config)
    for name, text in {"run": run, **flat(asdict(config))}.items():
        if isinstance(text, str) and text != text.encode(errors="ignore").decode():
            raise ConfigError(f"{name}={text!r}: not UTF-8, and no file of text can have it")
    backend, reason = choose_backend(config.backend)
    with connected(backend, config.mesh) as B:
        say = _say if B.process == 0 else _silent
        if note:
            say(note)
        if reason:
            say(f"backend: {backend} ({reason})")

        def first(dataset: Dataset) -> None:
            """What the configuration decides is rejected before a picture is decoded."""
            settled = resolve(config, dataset, backend)
            directory = RunDirectory(_folder(run, settled, backend))
            check_layout(B, settled)
            # How long epochs are is known when it is known which pictures are broken.
            if resume and config.training.epochs is None and B.process == 0 and directory.begun():
                directory.compared(settled, (), resume=True, override=override)

        dataset = load_data(config, first)
        given, config = config, resolve(config, dataset, backend)
        dataset = objective_of(config).read(config, dataset)
        if not resume:
            check_share(config, dataset)
        try_transform(dataset, config.data)
        check_layout(B, config)
        check_same(B, config, dataset, version())
        sets = load_sets(config, dataset)
        for note in (*(f"data: {note}" for note in dataset.notes), *notes(given, config)):
            say(note)
        if B.sizes.devices > 1:
            say(f"devices: {B.sizes}" + (f", of {B.processes} processes" if B.processes > 1 else ""))
        path = _folder(run, config, backend)
        _train(B, config, dataset, path, sets, resume=resume, override=override, say=say)


def _say(text: str) -> None:
    print(on_one_line(text))  # names of folders and files


def _folder(run: str | None, config: Config, backend: str) -> Path:
    """The folder of a run. By default it has the names of the data, the router and the backend."""
    return Path(run or f"runs/{config.data.name}-{_label(config)}-{backend}")


def _silent(text: str) -> None: ...


def _train(
    B: Backend,
    config: Config,
    dataset: Dataset,
    path: Path,
    sets: Mapping[str, EvaluationSet],
    *,
    resume: bool,
    override: bool,
    say: Callable[[str], None],
) -> None:
    directory, there = RunDirectory(path), os.path.exists(path)
    # All that can fail before the first step fails before there is a folder.
    begun = led(B, lambda: {"begun": directory.begun()})["begun"]
    initial = None if begun else starting_params(config, dataset, lazily=B.sizes.devices > 1)

    def claim() -> dict[str, bool]:
        stack.enter_context(directory.locked())
        if resume and not begun:
            say(f"{path}: nothing to resume, starting at step 0")
        finished = directory.finished(config)
        how: Any = {"resume": resume or finished, "override": override, "dataset": dataset}
        for aside in directory.claim(config, **how):
            say(f"{aside}: cooldown checkpoint moved aside; resuming from the previous one")
        if not finished:
            say(f"run: {path}")
        return {"finished": finished}

    def report() -> dict[str, bool]:
        params, _ = trained_params(directory, config)
        if not finished or not (path / "report.html").is_file():
            write_report(load_backend(B.name), config, dataset, path, params, devices=B.sizes.devices)
        last = read_log(path, "evaluation", some=True)[-1]
        say(f"{path}: finished{' already' if finished else ''}, {last['step']} steps in {last['seconds']:.0f} s")
        count = f" ({round(last['accuracy'] * last['images'])} of {last['images']})" if "loss" in last else ""
        say(f"validation {called(last)} {last['accuracy']:.4f}{count}")
        if "average" in last:
            say(f"validation accuracy of the average {last['average']['accuracy']:.4f}")
        say(f"report: {path / 'report.html'}")
        return {}

    with ExitStack() as stack:
        finished = led(B, claim)["finished"]
        if not finished:
            try:
                hooks = stack.enter_context(loggers(B, config, path, begun=begun, say=say))
            except ConfigError:
                if B.process == 0 and not there:
                    shutil.rmtree(path, ignore_errors=True)  # no step was made
                raise
            train(B, config, dataset, path, initial=initial, sets=sets, hooks=hooks)
        led(B, report)


def evaluate_command(
    run: Path,
    *,
    backend: str | None,
    step: int | None,
    sets: Mapping[str, EvaluationConfig],
    others: Mapping[str, Any] | None = None,
) -> None:
    """Prints the accuracy, the loss, the routing metrics and the cost of a checkpoint, and what else is evaluated.

    others: what `load_others` takes, for other images than the validation images. Raises Interrupted when a signal stops it.
    """
    loaded = load_run(run, backend, step)
    config, dataset, most = loaded.config, loaded.dataset, loaded.config.training.evaluation_batch
    if others is not None:
        dataset = load_others(config.data, dataset, **others)
        for note in dataset.notes:
            print(f"data: {on_one_line(note)}")
    evaluations = load_sets(config, dataset, {**({} if others else config.evaluation), **sets})
    B, model, images = loaded.backend, model_config(config.model), len(dataset.validation)
    params = B.from_numpy(loaded.params)
    objective = objective_of(config)
    with Interruption():
        dataset = objective.prepared(B, config, model, dataset, run, params)
        evaluate = objective.evaluation(B, config, model, dataset, pays(B, images // most))
        result = evaluate(params)
        right, total = round(result["accuracy"] * result["images"]), result["images"]
        print(f"{run}: step {loaded.step} of {config.training.steps}, backend {B.name}, data {dataset.name}")
        five = f", top 5 {result['top5']:.4f}" if "top5" in result else ""
        which = "accuracy" if others else f"validation {called(result)}"
        if "loss" in result:
            print(f"{which} {result['accuracy']:.4f} ({right} of {total}){five}, cross-entropy {result['loss']:.4f}")
        else:
            rest = {name: value for name, value in result.items() if name not in ("accuracy", "images")}
            print(f"{which} {result['accuracy']:.4f}, {told(rest)}")
        if config.optimizer.ema is not None and "loss" in result:
            averaged, _ = trained_params(RunDirectory(run), config, step=loaded.step, average=True)
            average = evaluate(B.from_numpy(averaged))
            print(f"of the average: {which} {average['accuracy']:.4f}, cross-entropy {average['loss']:.4f}")
        for block in sorted(result.get("moe", {}), key=in_order):
            print(f"block {block}: {line(result['moe'][block])}")
        measure = Evaluations(B, config, evaluations).measure
        for name in evaluations:
            print(f"{name}: {told(measure(name, params))}")
        check(B)
    batch = evaluation_size(B.sizes, model, most, min(most, images))
    took = milliseconds(B, model, params, batch=batch)
    print(f"cost: {described(model, batch=batch)}, {took:.3f} ms in batches of {batch}")


def inspect_command(
    run: Path, image: Path, out: Path, *, panels: Sequence[str], backend: str | None, step: int | None
) -> None:
    """Writes the picture of how a checkpoint routes an image, or of each image of a folder, whose names have numbers.

    Images of a folder that cannot be read are left out, and named at the end.
    """
    targets = {image: out}
    if image.is_dir():
        files, notes = find_pictures(image)
        print(*map(on_one_line, notes), sep="\n", end="\n" * len(notes))
        if len(files) > INSPECTED:
            raise ConfigError(f"image={str(image)!r}: {len(files)} pictures, expected at most {INSPECTED}")
        targets = {files.open(n): out.with_stem(f"{out.stem}-{n + 1}") for n in range(len(files))}
    for target in targets.values():
        check_output("out", target, [".png"], targets)
    loaded = load_run(run, backend, step)
    model, dataset = model_config(loaded.config.model), loaded.dataset
    data, B = loaded.config.data, loaded.backend
    look: Any = {"channels": model.channels, "resize": data.resize, "background": data.background}
    route, params = make_route(B, model), B.from_numpy(loaded.params)
    wrong: list[str] = []
    for source, target in targets.items():
        try:
            pixels = read_image(source, model.image_size, **look)
        except DataError as error:
            wrong.append(on_one_line(str(error)))
            continue
        logits, routings = route(params, replace(dataset, maximum=255).normalize(pixels))
        guess = prediction(logits, dataset.classes, loaded.config.training.loss)
        title = f"{source.name}{guess}; {_label(loaded.config)}, step {loaded.step}"
        write_atomically(target, png(draw(pixels, 255, title, routings, panels)))
        of = f" of {on_one_line(source.name)}" if len(targets) > 1 else ""
        print(f"{target}: {len(routings)} MoE layers{of}{guess}")
    print(*left_out(image, wrong, len(targets)), sep="\n  ", end="\n" * bool(wrong))


def left_out(path: Path, wrong: Sequence[str], count: int) -> list[str]:
    """Lines on the pictures, of so many of a folder, that cannot be read, if any. Raises DataError if it is all of them."""
    if len(wrong) == count:
        raise DataError(f"{path}: none of {count} pictures can be read: {wrong[0]}" if path.is_dir() else wrong[0])
    are = "is" if len(wrong) == 1 else "are"
    return [f"{len(wrong)} of {count} pictures cannot be read and {are} left out:", *wrong] if wrong else []


def hash_table_command(config: Config, out: Path) -> None:
    """Makes the codebook and tables that the router of a model needs, and writes them to a file."""
    check_output("out", out, [".safetensors"])
    dataset = load_data(config)
    config = resolve(config, dataset, "numpy")
    model = model_config(config.model)
    if not hash_tables.needed(model):
        section = config.model
        raise ConfigError(
            f"model.name={section.name!r}, router={section.router!r}, moe={section.moe!r}: no router that needs token ids"
        )
    tables = hash_tables.make(model, config, dataset)
    hash_tables.write(out, tables, model)
    codes = f"{len(tables.codebook)} codes, " if tables.codebook is not None else ""
    print(
        f"{out}: {codes}{tables.tables.shape[1]} ids, {hash_tables.table_options(model).experts} experts, {len(tables.tables)} hashes"
    )


def scan_command(path: Path, data: str, *, workers: int) -> None:
    """Prints what is wrong with each picture of the data set, in order. Raises DataError if any cannot be decoded."""
    check_limits(workers=workers)
    classes, *parts = PICTURES[data](path)
    total, wrong = 0, 0
    for part in parts:
        if part is not None:
            pictures = Pictures(part.files, np.arange(len(part.labels)), size=1)
            print(*map(on_one_line, part.notes), sep="\n", end="\n" * bool(part.notes))
            texts = [on_one_line(text) for _, text in broken(pictures, workers=workers)]
            print(*texts, sep="\n", end="\n" if texts else "")
            total, wrong = total + len(pictures), wrong + len(texts)
    if wrong:
        raise DataError(f"{path}: {wrong} of {total} pictures cannot be read; {SKIP}")
    print(f"{path}: all {total} pictures {f'of {len(classes)} classes ' if classes else ''}can be read")


def _label(config: Config) -> str:
    """The router of a ViT; the name of any other model."""
    return str(config.model.router) if isinstance(config.model, VitSection) else config.model.name


class LoadedRun(NamedTuple):
    """A run: its backend, its configuration and data, the parameters (NumPy) of a checkpoint, and its step."""

    backend: Backend
    config: Config
    dataset: Dataset
    params: dict[str, Any]
    step: int


def configuration(run: Path) -> tuple[RunDirectory, Config]:
    """The run in a folder and its configuration. Raises RunError where there is none."""
    directory = RunDirectory(run)
    config = directory.config()
    if config is None:
        raise RunError(f"run={str(run)!r}: there is no run, no config.toml in it")
    return directory, config


def read_data(config: Config) -> Dataset:
    """The data of a run that is read: its configuration, which may be third-party, names no folder that is written to."""
    return load_data(replace(config, data=replace(config.data, cache="")))


def load_run(run: Path, backend: str | None = None, step: int | None = None) -> LoadedRun:
    """The run in a folder, at its newest checkpoint or that of `step`, on `backend` or its own."""
    directory, config = configuration(run)
    name, _ = choose_backend(backend or config.backend)
    params, found = trained_params(directory, config, step=step)
    dataset = read_data(config)
    directory.check_classes(dataset.classes)
    return LoadedRun(load_backend(name), config, dataset, params, found)
