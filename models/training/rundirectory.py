"""The folder of a run: what is in it, and whether a command may start or go on there.

config.toml      the resolved configuration              checkpoints/   see `moespec.models.training.checkpoint`
metrics.jsonl    the log                                 report.html    what `moespec train` shows at the end
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from moespec.models.errors import RunError
from moespec.models.families import family
from moespec.models.files import write_atomically
from moespec.models.training import checkpoint, configfile, unchanged
from moespec.models.training.checkpoint import Checkpoint
from moespec.models.training.config import Config
from moespec.models.training.resolve import model_config

__all__ = ["RunDirectory"]

CONFIG = "config.toml"


class RunDirectory:
    """The folder `path` of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def config(self) -> Config | None:
        """The configuration saved here, or None when no run was started here."""
        file = self.path / CONFIG
        return configfile.read(file) if file.is_file() else None

    def finished(self, config: Config) -> bool:
        """Whether the newest checkpoint is that of the last step of `config`."""
        steps = checkpoint.steps(self.checkpoints)
        return bool(steps) and steps[-1] == config.training.steps

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here meanwhile. The system ends the lock with the process, however it ends.

        Raises RunError when another process has the lock, or the folder is not a run's.
        """
        self._make()
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"run={str(self.path)!r}: another process is training there") from None
        try:
            yield
        finally:
            lock.release()

    def claim(self, config: Config, *, resume: bool, override: bool = False) -> None:
        """Makes the folder, `locked`, that of a run with the resolved `config`: new or, if `resume`, the one begun here.

        Raises RunError for a folder that is not a run's, an unfinished run without `resume`, and a run that has another
        configuration, `unchanged.FREE` aside, according to its newest checkpoint or, before there is one, to
        config.toml. With `override` the run goes on with `config`, and its checkpoints say from which step on.
        """
        self._make()
        saved = self.config()
        checkpoint.sweep(self.checkpoints)
        if saved is not None:
            self._go_on(saved, config, resume=resume, override=override)
        write_atomically(self.path / CONFIG, configfile.dump(config).encode())
        self.checkpoints.mkdir(exist_ok=True)

    def _make(self) -> None:
        """Makes the folder. RunError if there is one that is not a run's."""
        self.path.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        if others and not (self.path / CONFIG).is_file():
            raise RunError(f"run={str(self.path)!r}: not a run, there is {others[0]!r} in it; choose another --run")

    def _go_on(self, saved: Config, config: Config, *, resume: bool, override: bool) -> None:
        where, newest = f"run={str(self.path)!r}", checkpoint.latest(self.checkpoints)
        record = None if newest is None else checkpoint.read_record(newest)
        written = unchanged.keys((self.path / CONFIG).read_text())
        if record is None and (lost := unchanged.keys(configfile.dump(saved)) - written):
            raise RunError(
                f"{self.path / CONFIG}: {', '.join(sorted(lost))} missing, which the run wrote; remove {self.path}"
            )
        changed = {
            key: pair
            for key, pair in unchanged.changes(record["config"] if record else asdict(saved), config).items()
            if key not in unchanged.FREE or key not in written  # a free field that is lost was not changed on purpose
        }
        if changed and not override:
            raise RunError(
                f"{where}: it has another configuration: {unchanged.described(changed)}. "
                "Choose another --run, or change this one on purpose with --resume --override"
            )
        if not resume:
            raise RunError(f"{where}: begun but not finished; go on with --resume, or choose another --run")
        if record is not None and record["step"] > config.training.steps:
            raise RunError(f"{where}: training.steps={config.training.steps}: {record['step']} steps are done already")
        if record is not None and newest is not None and changed:
            self._override(newest, config, changed)

    def _override(self, newest: Path, config: Config, changed: unchanged.Changes) -> None:
        """Notes in the newest checkpoint that the run goes on from there with `config`."""
        if fixed := sorted({"training.seed", "training.batch"} & changed.keys()):
            raise RunError(
                f"run={str(self.path)!r}: {unchanged.described({key: changed[key] for key in fixed})}; that cannot be "
                "overridden, as the order of the images depends on it"
            )
        model = model_config(config.model)
        record = checkpoint.read(newest, family(model).parameter_shapes(model)).record
        entry = {"step": record["step"], "changes": changed}
        overrides = [*record.get("overrides", []), entry]
        checkpoint.amend(newest, {**record, "config": asdict(config), "overrides": overrides})

    def load(self, shapes: Mapping[str, Any], *, step: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, or that of `step`, of a model with parameters of `shapes`; None if there is none."""
        path = checkpoint.latest(self.checkpoints) if step is None else self.checkpoints / f"{step:08d}"
        return None if path is None else checkpoint.read(path, dict(shapes))
