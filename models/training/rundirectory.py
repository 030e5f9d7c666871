"""The folder of a run: what is in it, and whether a command may start or go on there.

config.toml      the resolved configuration              checkpoints/   see `moespec.models.training.checkpoint`
metrics.jsonl    the log                                 report.html    what `moespec train` shows at the end
"""

from collections.abc import Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from moespec.models.errors import CheckpointError, RunError
from moespec.models.files import write_atomically
from moespec.models.training import checkpoint, configfile
from moespec.models.training.checkpoint import Checkpoint
from moespec.models.training.config import Config

__all__ = ["RunDirectory"]


OWN = ("checkpoints", "config.toml", "metrics.jsonl", "tensorboard")
"""What a run without a checkpoint may have in its folder."""


class RunDirectory:
    """The folder `path` of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def config(self) -> Config | None:
        """The configuration saved here, or None when no run was started here."""
        file = self.path / "config.toml"
        return configfile.read(file) if isfile(file) else None

    def begun(self) -> bool:
        """Whether a run was started here that has a checkpoint to go on from."""
        return isfile(self.path / "config.toml") and bool(checkpoint.steps(self.checkpoints))

    def finished(self) -> bool:
        """Whether the newest checkpoint is that of the last step."""
        config, steps = self.config() if self.begun() else None, checkpoint.steps(self.checkpoints)
        return config is not None and steps[-1] >= config.training.steps

    def claim(self, config: Config, *, resume: bool) -> None:
        """Makes the folder that of a run with the resolved `config`, new or, if `resume`, the one begun here.

        Raises RunError when something else is in the folder: a run with another configuration (the backend and the
        number of prefetched batches may differ), an unfinished run without `resume`, or files that are not a run's.
        A run without a checkpoint has nothing to lose: whatever its configuration, the new one takes its place.
        """
        saved = self.config() if self.begun() else None
        if saved is None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:  # ValueError: a name that no file can have
                raise RunError(f"run={str(self.path)!r}: no such folder can be made ({error})") from error
            rest = OWN if self.checkpoints.is_dir() else ()
            others = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            if others := [name for name in others if name not in rest]:
                raise RunError(f"run={str(self.path)!r}: not a run, there is {others[0]!r} in it; choose another --run")
        else:
            allowed = replace(saved, backend=config.backend, data=replace(saved.data, prefetch=config.data.prefetch))
            changed = configfile.differences(allowed, config)
            if changed:
                listed = "; ".join(f"{key} is {old!r} there, {new!r} here" for key, (old, new) in changed.items())
                raise RunError(f"run={str(self.path)!r}: it has another configuration: {listed}. Choose another --run")
            if not resume:
                raise RunError(
                    f"run={str(self.path)!r}: begun but not finished; go on with --resume, or choose another --run"
                )
        self.checkpoints.mkdir(exist_ok=True)  # first: it marks the folder as that of a run
        write_atomically(self.path / "config.toml", configfile.dump(config).encode())
        checkpoint.sweep(self.checkpoints)

    def load(self, shapes: Mapping[str, Any], *, step: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, or that of `step`, of a model with parameters of `shapes`; None if there is none."""
        steps = checkpoint.steps(self.checkpoints)
        if step is not None and step not in steps:
            listed = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(
                f"step={step!r}: not in {self.checkpoints}, which has checkpoints of the steps {listed}"
            )
        path = checkpoint.latest(self.checkpoints) if step is None else self.checkpoints / f"{step:08d}"
        return None if path is None else checkpoint.read(path, dict(shapes))
