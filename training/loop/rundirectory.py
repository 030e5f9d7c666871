"""Manages the folder of a run, and decides whether a command may start or resume a run in a folder.

config.toml      the resolved configuration              checkpoints/   see `moespec.training.loop.checkpoint`
metrics.jsonl    the log                                 report.html    the report, which `moespec train` writes at the end
classes.json     the names of the classes, in order
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from os.path import exists, isfile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from moespec.models.checks import OWN
from moespec.models.errors import BusyError, CheckpointError, RunError
from moespec.models.files import RECORD, read_file, signed, sweep, unsigned, write_atomically
from moespec.models.pytrees import flatten
from moespec.models.router_options import named
from moespec.training.configuration import configfile, length
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset
from moespec.training.loop import checkpoint, config_compatibility
from moespec.training.loop.best import Best, ended
from moespec.training.loop.checkpoint import Checkpoint
from moespec.training.loop.resolve import model_config
from moespec.training.objectives.table import shapes_of

__all__ = ["RunDirectory"]

CONFIG, CLASSES = "config.toml", "classes.json"
LENGTH = "training.steps"
FIXED = "this change cannot be overridden, since the order of the images depends on it"
ADVICE = "Choose another --run, or change this run with moespec train --resume --override"


class RunDirectory:
    """The folder `path` of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def config(self) -> Config | None:
        """The configuration saved in this folder, or None if the folder has no config.toml."""
        file = self.path / CONFIG
        if not exists(file):
            return None
        config = configfile.read(file)
        with named(f"{file}: ", ("model",)):
            model_config(config.model)
        return config

    def begun_config(self) -> Config:
        """The configuration saved in this folder. Raises RunError if no configuration is saved."""
        config = self.config()
        if config is None:
            raise RunError(f"run={str(self.path)!r}: not a run (no config.toml)")
        return config

    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in label order; empty for a run of a version that did not save the names."""
        file = self.path / CLASSES
        if not exists(file):
            return ()
        try:
            content = read_file(file, RECORD)  # version 0.1 and early 0.2 wrote a list
            names = json.loads(content) if content[:1] == b"[" else unsigned(content).get("classes")
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{file}: cannot be read ({error})") from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RunError(f"{file}: expected a list of names")
        return tuple(names)

    def check_classes(self, names: Sequence[str], advice: str = "") -> None:
        """Raises RunError if the data and the run have different class names, since labels would change their meaning."""
        known = self.classes()
        for label, (before, now) in enumerate(zip_longest(known, names) if known else ()):
            if before != now:
                found = f"class {label} is {now!r} in the data, but {before!r} in {CLASSES}"
                raise RunError(f"run={str(self.path)!r}: {found}{advice}")

    def begun(self) -> bool:
        """Whether the folder holds a run with a checkpoint to resume from."""
        return isfile(self.path / CONFIG) and bool(checkpoint.steps(self.checkpoints))

    def finished(self, config: Config) -> bool:
        """Whether the run has reached the last step of `config` or stopped early, and has no pending evaluation."""
        newest = checkpoint.latest(self.checkpoints) if self.begun() else None
        early = ended(config, self.best(config.training.keep_best))
        if newest is None or not (early or int(newest.name) == config.training.steps):
            return False
        return not checkpoint.read_record(newest).get("owed")

    def best(self, measure: str | None = None) -> Best | None:
        """The best evaluation in the newest checkpoint, or None if the checkpoint has none or records another measure."""
        newest = checkpoint.latest(self.checkpoints)
        entry = checkpoint.read_record(newest).get("best") if newest else None
        return Best(**entry) if entry and measure in (None, entry["measure"]) else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within this context, no other process can train in this folder. The system releases the lock when the process ends.

        Raises BusyError if another process holds the lock, and RunError for a folder that is neither empty nor a run.
        """
        self._make()
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(f"run={str(self.path)!r}: another process is training there") from None
        try:
            yield
        finally:
            lock.release()

    def claim(
        self, config: Config, *, resume: bool, override: bool = False, dataset: Dataset | None = None
    ) -> list[Path]:
        """Prepares the `locked` folder for a run with the resolved `config`: a new run or, with `resume`, the existing run.

        dataset: the data set whose class names are saved and whose stamp is compared with the stamp of the run.

        Raises RunError for a folder that is neither empty nor a run, for an unfinished run without `resume`, and for a run whose newest
        checkpoint has a different configuration (except for the fields in `config_compatibility.FREE`), different data or different
        classes. With `override`, the run resumes with `config`, and its checkpoints record the step of the change. If the run has
        no checkpoint, `config` replaces its configuration. With `resume`, RunError is raised if config.toml is incomplete.

        If `config` changes the number of steps, the run resumes from the newest checkpoint before which no learning rate changes.
        Later checkpoints, which belong to the cooldown, are moved aside. Returns the new paths of the moved checkpoints.
        """
        self._make()
        classes, stamp = (dataset.classes, dataset.stamp) if dataset is not None else ((), {})
        aside: list[Path] = []
        if self.begun():
            aside = self._go_on(config, classes, stamp, resume=resume, override=override)
        elif resume and (saved := self.config()) is not None:
            written = config_compatibility.keys((self.path / CONFIG).read_text())
            if lost := config_compatibility.keys(configfile.dump(saved)) - written:
                advice = "the run has no checkpoint; start again without --resume"
                raise RunError(f"{self.path / CONFIG}: the entries {', '.join(sorted(lost))} are missing, and {advice}")
        for folder in (self.path, self.checkpoints, *self.checkpoints.glob("[0-9]*")):
            sweep(folder)
        self.checkpoints.mkdir(exist_ok=True)  # created first: by this folder, `_make` recognises a run
        if classes:
            write_atomically(self.path / CLASSES, signed({"classes": [*classes]}, indent=None) + b"\n")
        write_atomically(self.path / CONFIG, configfile.dump(config).encode())
        return aside

    def _make(self) -> None:
        """Creates the folder. Raises RunError if the folder cannot be created, or is neither empty nor a run."""
        where = f"run={str(self.path)!r}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: an invalid file name
            raise RunError(f"{where}: cannot create this folder ({error})") from error
        rest = OWN if self.checkpoints.is_dir() else ()
        others = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        if others := [name for name in others if name not in rest and not self.begun()]:
            raise RunError(f"{where}: expected a run or an empty folder, found {others[0]!r}; choose another --run")

    def _go_on(
        self, config: Config, classes: Sequence[str], stamp: Mapping[str, Any], *, resume: bool, override: bool
    ) -> list[Path]:
        changed, later = self.compared(config, classes, resume=resume, override=override)
        newest = self.checkpoints / f"{checkpoint.steps(self.checkpoints)[-1]:08d}"
        record = checkpoint.read_record(newest)
        if data := config_compatibility.of_data(record.get("stamp", {}), stamp):
            told = f"run={str(self.path)!r}: the data has changed since step {record['step']}: {config_compatibility.described(data)}"
            if config_compatibility.NUMBER in data:
                raise RunError(f"{told}; {FIXED}")
            if not override:
                raise RunError(f"{told}. {ADVICE}")
        if changed or data:
            self._override(newest, config, {**changed, **data}, stamp)
        return [checkpoint.set_aside(self.checkpoints / f"{step:08d}") for step in later]

    def compared(
        self, config: Config, classes: Sequence[str], *, resume: bool, override: bool
    ) -> tuple[config_compatibility.Changes, list[int]]:
        """Compares `config` and the classes with the run in this folder; returns differences and steps of checkpoints to move aside.

        Raises RunError in the same cases as `claim`. Writes nothing.
        """
        if classes and not override:
            self.check_classes(classes, f". {ADVICE}")
        steps = checkpoint.steps(self.checkpoints)
        where, newest = f"run={str(self.path)!r}", self.checkpoints / f"{steps[-1]:08d}"
        record, written = checkpoint.read_record(newest), config_compatibility.keys((self.path / CONFIG).read_text())
        recorded = flatten(record["config"], separator=".")
        changed = {
            key: pair
            for key, pair in config_compatibility.changes(record["config"], config).items()
            # a free field counts as changed only if config.toml lacks the field although the checkpoint records a value
            if key not in config_compatibility.FREE or (key not in written and recorded.get(key) is not None)
        }
        if classes and (known := self.classes()) and known != tuple(classes):
            changed[CLASSES] = (list(known), list(classes))
        later: list[int] = []
        if not override and LENGTH in written and changed.get(LENGTH, (None,))[0] is not None:
            before = int(changed[LENGTH][0])
            same = min(length.settled(config.schedule, total) for total in (before, config.training.total))
            # With rsqrt, a run can return to a checkpoint before the cooldown. Other schedules need the newest checkpoint.
            if steps[0 if config.schedule.name == "rsqrt" else -1] <= same:
                del changed[LENGTH]
                later = [step for step in steps if step > same]
            elif changed.keys() == {LENGTH}:
                raise RunError(_other_rates(where, config, before, same, steps))
        if changed and not override:
            raise RunError(f"{where}: the configuration changed: {config_compatibility.described(changed)}. {ADVICE}")
        if not resume:
            raise RunError(f"{where}: the run is unfinished; resume it with --resume, or choose another --run")
        if record["step"] > config.training.total:
            raise RunError(
                f"{where}: training.steps={config.training.total}: the run already has {record['step']} steps"
            )
        return changed, later

    def _override(
        self, newest: Path, config: Config, changed: config_compatibility.Changes, stamp: Mapping[str, Any]
    ) -> None:
        """Records in the newest checkpoint that the run resumes from there with `config`."""
        if fixed := sorted({"training.seed", "training.batch"} & changed.keys()):
            told = config_compatibility.described({key: changed[key] for key in fixed})
            raise RunError(f"run={str(self.path)!r}: {told}; {FIXED}")
        model = model_config(config.model)
        shapes = shapes_of(config, model)
        saved = checkpoint.read(newest, shapes)
        record, trees = saved.record, [name for name in saved.state if name != "step"]
        needed = config.optimizer.state_shapes(shapes)
        if flatten(needed).keys() != flatten({name: saved.state[name] for name in trees}).keys():
            told = config_compatibility.described(changed)
            why = "since the checkpoint lacks this optimizer's state"
            raise RunError(f"run={str(self.path)!r}: {told}; this change cannot be overridden, {why}")
        entry = {"step": record["step"], "changes": changed}
        overrides = [*record.get("overrides", []), entry]
        of_data = {"stamp": stamp} if stamp else {}
        checkpoint.amend(newest, {**record, "config": asdict(config), "overrides": overrides, **of_data})

    def load(self, shapes: Mapping[str, Any], *, whole: bool = True) -> Checkpoint | None:
        """Reads the newest checkpoint, if any, for a model whose parameters have the shapes `shapes`. whole: see `checkpoint.read`."""
        path = self.place()
        return None if path is None else checkpoint.read(path, dict(shapes), whole=whole)

    def place(self, step: int | str | None = None) -> Path | None:
        """The folder of the checkpoint at `step` (or "best"; default: the newest, if any). Raises CheckpointError for a missing step."""
        steps = checkpoint.steps(self.checkpoints)
        if step == "best" and (best := self.best()) is not None:
            step = best.step
        if step is not None and step not in steps:
            listed = ", ".join(map(str, steps)) or "none"
            known = f"has steps {listed}" + (
                " but no best step, as training.keep_best is not set" if step == "best" else ""
            )
            raise CheckpointError(f"step={step!r}: not in {self.checkpoints}, which {known}")
        return checkpoint.latest(self.checkpoints) if step is None else self.checkpoints / f"{step:08d}"


def _other_rates(where: str, config: Config, before: int, same: int, steps: list[int]) -> str:
    """Returns the error for a changed number of steps that would change the learning rates of finished steps."""
    name, now = config.schedule.name, config.training.total
    listed = ", ".join(map(str, steps))
    why = (
        f"the schedule {name!r} with {now} steps has the same rates as with {before} only for the first {same} steps, "
        f"but the checkpoints are at steps {listed}"
    )
    advice = "" if name == "rsqrt" else "; use the rsqrt schedule for runs that you may extend"
    return f"{where}: training.steps={now}: {why}{advice}. {ADVICE}"
