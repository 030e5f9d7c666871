"""Writes and reads checkpoints, from which a run resumes bit for bit. Checkpoints are written atomically and verified when read.

A checkpoint is a folder `checkpoints/<step>` with two files:

    arrays.safetensors    params/..., and slot/... for each value that the optimiser keeps per parameter, such as mu/..., nu/...
    state.json            step, configuration and its overrides, random state (seed and step), generator of noise,
                          data position, backend, seconds of training, version of moespec, and the SHA-256 of
                          arrays.safetensors and of state.json

On several devices, a thread in each process writes the shards of the process (`moespec.training.loop.shards`) to a file,
such as `arrays-00001-of-00004.safetensors`, and the file's checksum to a note. Once all notes exist, process 0 writes
state.json, which names the files, and renames the folder. Processes communicate only through the folder, so training continues
while the threads write. Any number of processes can read the checkpoint; each process loads only the arrays or shards that it needs.

A checkpoint is written under a temporary name, flushed, and renamed. Nothing is pickled. Any backend can read any checkpoint. The recorded
configuration determines which optimiser values a checkpoint contains. A checkpoint of format 1 always contains both moments.
"""

import json
import re
import shutil
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy

from moespec.backends.contract import Backend
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.errors import CheckpointError, RunError
from moespec.models.files import RECORD, read_file, signed, sync_directory, unsigned, write_atomically, write_synced
from moespec.models.pytrees import flatten, nested
from moespec.spec.errors import ConfigError
from moespec.training.loop.shards import ArrayFile, digest, named_pieces, stored

__all__ = [*("Checkpoint", "Saver", "amend", "latest", "read", "read_record", "set_aside", "steps", "write")]

FORMATS = (1, 2, 3)
"""Formats that can be read. Format 2 has one file of arrays, format 3 one per process."""
ARRAYS, STATE = "arrays.safetensors", "state.json"
ENTRIES: dict[str, type | tuple[type, ...]] = {
    **{"step": int, "config": dict, "random": dict, "data": dict, "backend": str, "seconds": (int, float)}
}
"""Required entries of state.json besides the format, the checksum of state.json and the checksums of the arrays."""
PATIENCE, LOOK = 600.0, 0.05
"""Seconds that process 0 waits for the files of the other processes, and seconds between two checks."""
MORE: dict[str, Any] = {"overrides": list, "owed": list, "logged": int, "stamp": dict, "best": dict | None}
"""Optional entries of state.json, which older versions did not write."""


@dataclass(frozen=True)
class Checkpoint:
    """`state` is the result of a backend's `export_state` ("params", "step" and optimiser slots); `record` is the content of state.json."""

    state: dict[str, Any]
    record: dict[str, Any]


def write(folder: Path, checkpoint: Checkpoint, *, keep: int, spare: int | None = None) -> Path:
    """Writes a checkpoint and returns its path. Removes all but the newest `keep`, step `spare`, and the best steps in their records."""
    temporary = _unfinished(folder, checkpoint.record["step"])
    arrays = _encoded(checkpoint.state)
    record = {"format": 2, **checkpoint.record, "arrays_sha256": digest(arrays)}
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        write_synced(temporary / ARRAYS, arrays)
        return _finish(folder, record, keep=keep, spare=spare)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # an incomplete file, for example on a full disk, is useless
        raise


def _unfinished(folder: Path, step: int) -> Path:
    """The temporary folder of a checkpoint that is being written."""
    return folder / f".{step:08d}.tmp"


def _encoded(state: dict[str, Any]) -> bytes:
    """Encodes the arrays of a state, or the shards of this process, as a safetensors file."""
    return safetensors.numpy.save(named_pieces(flatten({name: tree for name, tree in state.items() if name != "step"})))


def _finish(folder: Path, record: dict[str, Any], *, keep: int, spare: int | None) -> Path:
    """Completes a checkpoint whose arrays are written: writes its record, renames it, and removes older checkpoints; see `write`."""
    final, temporary = folder / f"{record['step']:08d}", _unfinished(folder, record["step"])
    write_synced(temporary / STATE, signed(record))
    sync_directory(temporary)
    temporary.rename(final)
    sync_directory(folder)
    present = steps(folder)
    kept = {spare, *present[-keep:]}
    for step in kept.intersection(present) if record.get("best") else ():
        with suppress(CheckpointError):  # a resumed run reports the damaged checkpoint
            kept.add((read_record(folder / f"{step:08d}").get("best") or {}).get("step"))
    for old in present:
        if old not in kept:
            try:
                _remove(folder / f"{old:08d}")
            except OSError as error:  # a warning is enough: the new checkpoint is complete
                warnings.warn(f"{folder}: cannot remove the old checkpoint {old} ({error.strerror})", stacklevel=1)
    return final


def amend(path: Path, record: dict[str, Any]) -> None:
    """Replaces the record of the checkpoint at `path`."""
    write_atomically(path / STATE, signed(record))


def set_aside(path: Path) -> Path:
    """Renames the checkpoint at `path` so that it no longer belongs to the run. Returns the new path."""
    aside = path.with_name(f"cooled_{path.name}")
    _remove(aside)
    path.rename(aside)
    return aside


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in `folder`, in order."""
    names = [path.name for path in folder.glob("[0-9]*")]
    numbers = {name: int(name) for name in names if re.fullmatch("[0-9]{8,}", name)}  # isdigit also accepts ²
    return sorted(step for name, step in numbers.items() if name == f"{step:08d}")


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, or None."""
    present = steps(folder)
    return folder / f"{present[-1]:08d}" if present else None


def read(path: Path, shapes: dict[str, Any], *, whole: bool = True) -> Checkpoint:
    """Reads and verifies the checkpoint at `path` for a model whose parameters have the shapes `shapes` (a nested dict of tuples).

    whole: if False, arrays are read and verified only when slices are requested, see `Stored`. Raises CheckpointError, naming the file,
    if a file is missing or damaged, or the arrays do not belong to the model.
    """
    record = read_record(path)
    files = [ArrayFile(path / name, sha256) for name, sha256 in _files(record).items()]
    where = path / ARRAYS if record["format"] < 3 else path
    try:
        arrays = stored(files, whole=whole)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror}){_advice(path)}") from error
    except ValueError as error:
        raise CheckpointError(f"{error}{_advice(path)}") from error
    try:
        wanted = OptimizerConfig(**record["config"].get("optimizer", {})).state_shapes(shapes)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: config.optimizer: {error}") from error
    expected = flatten(wanted if record["format"] > 1 else dict.fromkeys(("params", "mu", "nu"), shapes))
    for name, shape in expected.items():
        if name not in arrays:
            raise CheckpointError(f"{where}: the array {name!r} is missing")
        if arrays[name].shape != tuple(shape) or arrays[name].stored_as not in ("F32", "F64"):
            is_now = f"{arrays[name].stored_as} {arrays[name].shape}"
            raise CheckpointError(f"{where}: {name} is {is_now}, expected F32 {tuple(shape)}")
    if unknown := sorted(set(arrays) - set(expected)):
        raise CheckpointError(f"{where}: {unknown[0]!r} is not an array of this model's state")
    values: dict[str, Any] = dict(arrays)
    if whole:
        for name, array in arrays.items():
            try:
                values[name] = np.asarray(array)
            except ValueError as error:
                raise CheckpointError(f"{where}: {name} {error}{_advice(path)}") from error
    return Checkpoint({**nested({name: values[name] for name in flatten(wanted)}), "step": record["step"]}, record)


def _files(record: dict[str, Any]) -> dict[str, str]:
    """The array files of a checkpoint and their checksums."""
    return record["files"] if record["format"] >= 3 else {ARRAYS: record["arrays_sha256"]}


def read_record(folder: Path) -> dict[str, Any]:
    """Reads and verifies state.json of the checkpoint at `folder`. Raises CheckpointError, naming the file."""
    path = folder / STATE
    try:
        record = unsigned(read_file(path, RECORD))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}){_advice(path.parent)}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}{_advice(path.parent)}") from error
    if record.get("format") not in FORMATS:
        by = record.get("version", "0.1")  # version 0.1 did not record its version
        raise CheckpointError(f"{path}: has format {record.get('format')!r} of moespec {by}, expected one of {FORMATS}")
    arrays: dict[str, Any] = {"files": dict} if record["format"] >= 3 else {"arrays_sha256": str}
    for key, kind in {**ENTRIES, **arrays, **{key: MORE[key] for key in MORE if key in record}}.items():
        if key not in record:
            raise CheckpointError(f"{path}: the entry {key!r} is missing")
        if not isinstance(record[key], kind) or isinstance(record[key], bool):
            raise CheckpointError(f"{path}: {key}={record[key]!r}: invalid checkpoint entry")
    for name, sha256 in _files(record).items():
        if not isinstance(sha256, str) or not re.fullmatch(r"arrays(-\d{5}-of-\d{5})?\.safetensors", name):
            raise CheckpointError(f"{path}: files: {name!r}: invalid checkpoint entry")
    if f"{record['step']:08d}" != folder.name:
        raise CheckpointError(f"{path}: step={record['step']!r}, but its folder is {folder.name}")
    return record


def _advice(path: Path) -> str:
    older = [step for step in steps(path.parent) if f"{step:08d}" < path.name]
    return f". To resume from step {older[-1]}, remove {path}" if older else f". {path} is the only checkpoint"


def _remove(path: Path) -> None:
    """Renames a checkpoint before deleting its files, so that a crash never leaves a partial checkpoint."""
    if path.exists():
        aside = path.with_name(f".{path.name}.old.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        shutil.rmtree(str(aside))  # a str, since errors show a Path as PosixPath(...)


class Saver:
    """Writes the checkpoints of a run to `folder`. See `write` for `keep` and `spare`.

    Use as a context manager: the exit waits for the current write. If a write fails, the next call or the exit raises the error.
    """

    def __init__(self, B: Backend, folder: Path, *, keep: int, spare: int | None) -> None:
        self._B, self._folder, self._keep, self._spare = B, folder, keep, spare
        self._threads = ThreadPoolExecutor(1, "moespec-checkpoint")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()
        if error[0] is None:
            self.wait()

    def save(self, state: dict[str, Any], record: dict[str, Any]) -> None:
        """Saves an exported state. With several devices, a thread writes the checkpoint, and this call does not wait for the thread."""
        if self._B.sizes.devices == 1:
            write(self._folder, Checkpoint(state, record), keep=self._keep, spare=self._spare)
            return
        self.wait()
        self._last = self._threads.submit(self._write, state, record)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete."""
        if self._last is not None:
            self._last.result()

    def _write(self, state: dict[str, Any], record: dict[str, Any]) -> None:
        folder, process = _unfinished(self._folder, record["step"]), self._B.process
        name = _file(process, self._B.processes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            arrays = _encoded(state)
            write_synced(folder / name, arrays)
            write_atomically(_note(folder, process), json.dumps({"sha256": digest(arrays)}).encode())
        except OSError as error:
            with suppress(OSError):
                write_atomically(_note(folder, process), json.dumps({"error": str(error)}).encode())
            raise
        if process == 0:
            processes = range(self._B.processes)
            files = {_file(index, len(processes)): self._checksum(folder, index) for index in processes}
            for index in processes:
                _note(folder, index).unlink()
            record = {"format": 3, **record, "files": files}
            _finish(self._folder, record, keep=self._keep, spare=self._spare)

    def _checksum(self, folder: Path, process: int) -> str:
        """Waits until a process has written its file, and returns the checksum of the file."""
        note, until = _note(folder, process), time.monotonic() + PATIENCE
        while not note.exists():
            if time.monotonic() > until:
                raise RunError(f"{folder}: process {process} did not save its part within {PATIENCE:.0f} s")
            time.sleep(LOOK)
        record = json.loads(note.read_bytes())
        if "error" in record:
            raise RunError(f"{folder}: process {process} failed to save its part: {record['error']}")
        return str(record["sha256"])


def _file(process: int, processes: int) -> str:
    return f"arrays-{process + 1:05d}-of-{processes:05d}.safetensors"


def _note(folder: Path, process: int) -> Path:
    return folder / f"{process}.json"
