"""Files are whole at every moment, whatever ends the process or the machine: in what order they reach the disk."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.models.files import named_errors, sync_directory, write_atomically
from moespec.models.training import checkpoint
from moespec.models.training.runlog import RunLog
from moespec.models.training.saver import Saver

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are synchronised on POSIX alone")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synchronised, and with how many bytes, and what is renamed, in order, with names within `tmp_path`."""
    made: list[str] = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        name = next(  # by its number, as no system but Linux tells a descriptor's name
            path.relative_to(tmp_path).as_posix()
            for path in (tmp_path, *tmp_path.rglob("*"))
            if path.stat().st_ino == found.st_ino
        )
        made.append(f"sync {name}" if stat.S_ISDIR(found.st_mode) else f"sync {name} of {found.st_size}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        real = getattr(os, name)

        def renamed(source: Any, target: Any, *, real: Any = real, **options: Any) -> None:
            made.append(" to ".join(Path(path).relative_to(tmp_path).as_posix() for path in (source, target)))
            real(source, target, **options)

        monkeypatch.setattr(os, name, renamed)
    return made


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "x").write_bytes(b"old")
    write_atomically(tmp_path / "x", b"newer")
    assert calls == ["sync .x.tmp of 5", ".x.tmp to x", "sync ."]
    assert (tmp_path / "x").read_bytes() == b"newer"


def state(step: int) -> checkpoint.Checkpoint:
    record = {"step": step, "config": {}, "random": {}, "data": {}, "backend": "torch", "seconds": 1.0}
    trees = {tree: {"bias": np.zeros(4, np.float32)} for tree in ("params", "mu", "nu")}
    return checkpoint.Checkpoint({**trees, "step": step}, record)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, calls: list[str]) -> None:
    """And the older one goes after that, under a name that is none of a checkpoint."""
    checkpoint.write(tmp_path, state(1), keep=1)
    del calls[:]
    checkpoint.write(tmp_path, state(2), keep=1)
    sizes = {name: (tmp_path / "00000002" / name).stat().st_size for name in ("arrays.safetensors", "state.json")}
    assert calls == [
        *(f"sync .00000002.tmp/{name} of {size}" for name, size in sizes.items()),
        *("sync .00000002.tmp", ".00000002.tmp to 00000002", "sync .", "00000001 to .00000001.old.tmp"),
    ]


def test_the_record_of_a_checkpoint_is_replaced_whole(tmp_path: Path, calls: list[str]) -> None:
    checkpoint.write(tmp_path, state(1), keep=1)
    del calls[:]
    checkpoint.amend(tmp_path / "00000001", {**state(1).record, "seconds": 2.0})
    assert "00000001/.state.json.tmp to 00000001/state.json" in calls


def test_the_log_is_on_the_disk_before_the_checkpoint(tmp_path: Path, runs: Any, monkeypatch: Any) -> None:
    """As a run that goes on drops lines, and cannot make up for lines that are lost."""
    run, order = runs.broken("torch", tmp_path / "run", step=8), []
    log, save = RunLog.sync, Saver.save
    monkeypatch.setattr(RunLog, "sync", lambda self: (order.append("log"), log(self)))
    monkeypatch.setattr(Saver, "save", lambda *arguments: (order.append("checkpoint"), save(*arguments)))
    runs.train(run, "torch")
    assert order == ["log", "checkpoint"]


def test_the_log_reaches_the_disk(tmp_path: Path, calls: list[str]) -> None:
    log = RunLog(tmp_path, 0)
    log.write("train", 1, {"loss": 0.5})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    assert size > 0, "each line is written at once"
    assert calls == []
    log.sync()
    log.close()
    assert calls == [f"sync metrics.jsonl of {size}"]


def test_a_run_sweeps_what_a_killed_process_left(tmp_path: Path, runs: Any) -> None:
    run = runs.broken("torch", tmp_path / "run", step=8)
    for rest in (".00000012.tmp", ".00000004.old.tmp"):
        (run / "checkpoints" / rest).mkdir()
        (run / "checkpoints" / rest / "arrays.safetensors").write_bytes(b"half")
    runs.train(run, "torch")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["00000008", "00000012"]


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tmp_path / "x").write_bytes(b"old")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("fsync",) if failing == "write" else ("rename", "replace"):
        monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(tmp_path / "x", b"newer")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_an_error_of_any_call_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = RunLog(tmp_path, 0)
    monkeypatch.setattr(os, "fsync", full)
    for name, call in (
        (f"'{tmp_path}'", lambda: sync_directory(tmp_path)),
        ("x.tmp'", lambda: write_atomically(tmp_path / "x", b"")),
        ("metrics.jsonl'", log.sync),
    ):
        with pytest.raises(OSError, match=f"No space left on device: .*{name}"):
            call()
    log.close()
    with pytest.raises(OSError, match="no number") as error, named_errors(tmp_path / "x"):
        raise OSError("no number")
    assert error.value.filename is None
