"""Saving the state of a run: at once by one device, on a thread where several devices have parts of it.

Of several processes each writes the file of its shards and a note of its checksum. Process 0 waits for all notes, then gives the
checkpoint its name. Processes communicate only through the folder, so that training goes on meanwhile.
"""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from moespec.backends.contract import Backend
from moespec.models.errors import RunError
from moespec.models.files import write_atomically, write_synced
from moespec.training.loop import checkpoint
from moespec.training.loop.checkpoint import Checkpoint
from moespec.training.loop.shards import digest

__all__ = ["Saver"]

PATIENCE = 600.0
"""Seconds that process 0 waits for the parts of the others."""
LOOK = 0.05


class Saver:
    """Writes the checkpoints of a run into `folder`, of which it keeps so many and that of the step `spare`.

    Use as a context manager: leaving it waits for what is being written. An error of writing is raised by the next call, or there.
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
        """Saves an exported state. With several devices it returns when the thread has begun."""
        if self._B.sizes.devices == 1:
            checkpoint.write(self._folder, Checkpoint(state, record), keep=self._keep, spare=self._spare)
            return
        self.wait()
        self._last = self._threads.submit(self._write, state, record)

    def wait(self) -> None:
        """Waits until the last checkpoint is whole."""
        if self._last is not None:
            self._last.result()

    def _write(self, state: dict[str, Any], record: dict[str, Any]) -> None:
        folder, process = checkpoint.unfinished(self._folder, record["step"]), self._B.process
        name = _file(process, self._B.processes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            arrays = checkpoint.encoded(state)
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
            checkpoint.finish(self._folder, record, keep=self._keep, spare=self._spare)

    def _checksum(self, folder: Path, process: int) -> str:
        """That of the file of a process, when it is written."""
        note, until = _note(folder, process), time.monotonic() + PATIENCE
        while not note.exists():
            if time.monotonic() > until:
                raise RunError(f"{folder}: process {process} has not saved its part within {PATIENCE:.0f} s")
            time.sleep(LOOK)
        record = json.loads(note.read_bytes())
        if "error" in record:
            raise RunError(f"{folder}: process {process} could not save its part: {record['error']}")
        return str(record["sha256"])


def _file(process: int, processes: int) -> str:
    return f"arrays-{process + 1:05d}-of-{processes:05d}.safetensors"


def _note(folder: Path, process: int) -> Path:
    return folder / f"{process}.json"
