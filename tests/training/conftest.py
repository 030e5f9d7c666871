"""A tiny run, trained once for each backend, that the tests of training copy and continue."""

import contextlib
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moespec import cli
from moespec.training.commandline.chosen import chosen
from moespec.training.commandline.parse import Settings, parse
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits
from moespec.training.loop import resolve
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.loop.train import train


@pytest.fixture(scope="package", autouse=True)
def quick_compilation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What JAX compiled once is kept, for other processes too; small reports."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as after:
        for name, value in options.items():
            patch.setenv(name.upper(), str(value))
        patch.setattr("moespec.training.reports.report.IMAGES", 2)
        with contextlib.suppress(ImportError):
            config = importlib.import_module("jax").config
            cache = importlib.import_module("jax.experimental.compilation_cache.compilation_cache")
            after.callback(cache.reset_cache)
            for name, value in options.items():
                after.callback(config.update, name, config.values[name])
                config.update(name, value)
            cache.reset_cache()  # it may have begun without a folder
        yield


class Runs:
    """Tiny runs of 12 steps. `config` is their configuration, `flags` the same as options of `moespec train`."""

    flags = (
        *("--model.depth", "2", "--model.width", "16", "--model.hidden", "16", "--model.heads", "2"),
        *("--model.patch-size", "4", "--model.moe", "last_1", "--model.experts", "2"),
        *("--schedule.warmup", "2", "--schedule.peak", "1e-2", "--training.steps", "12", "--training.batch", "16"),
        *("--training.evaluate-every", "6", "--training.checkpoint-every", "4", "--training.keep", "9"),
        *("--training.log-every", "1"),
    )
    config = parse("train", Settings, flags, settings=chosen(flags, digits())).settings

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def whole(self, backend: str) -> Path:
        """The folder of a whole run, report and all, made by the command line; made once."""
        pytest.importorskip(backend)
        run = self._folder / backend
        if not run.exists():
            assert cli.main(["train", "--backend", backend, "--run", str(run), *self.flags]) == 0
        return run

    def broken(self, backend: str, target: Path, *, step: int) -> Path:
        """A copy of a whole run as if killed when it had only the checkpoint of `step`, and a log that goes further."""
        return self.stopped(self.whole(backend), target, step=step)

    @staticmethod
    def stopped(source: Path, target: Path, *, step: int) -> Path:
        """A copy of the run `source` as if killed when it had only the checkpoint of `step`."""
        target.mkdir()
        for name in ("config.toml", "metrics.jsonl"):
            shutil.copy(source / name, target / name)
        shutil.copytree(source / "checkpoints" / f"{step:08d}", target / "checkpoints" / f"{step:08d}")
        return target

    @staticmethod
    def files(run: Path) -> dict[Path, bytes]:
        """All files of a run but its lock, with what they have."""
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}

    @staticmethod
    def contrastive(run: Path) -> list[float]:
        """The contrastive loss of each step."""
        return [line["contrastive"] for line in read_log(run, "train")]

    def train(self, run: Path, backend: str, config: Config | None = None) -> Any:
        """Trains, or goes on, in the folder `run`; what `train` returns."""
        pytest.importorskip(backend)
        config = config or self.config
        dataset = resolve.load_data(config)
        config = resolve.resolve(config, dataset, backend)
        directory = RunDirectory(run)
        with directory.locked():
            directory.claim(config, resume=True)
            return train(resolve.load_backend(backend), config, dataset, run)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))
