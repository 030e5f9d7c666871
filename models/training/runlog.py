"""The log of a run: metrics.jsonl always, TensorBoard files as well when the package tensorboard is installed.

A line of metrics.jsonl is one JSON object with "kind" ("train" or "evaluation") and "step", the number of updates made
before it was measured. A resumed run drops the lines after its checkpoint, so each step is in the log once.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from moespec.models.errors import RunError
from moespec.models.files import named_errors, write_atomically

__all__ = ["RunLog", "read_log"]

NAME = "metrics.jsonl"


def read_log(run: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl, in order. Raises RunError naming a line that is not JSON."""
    path = run / NAME
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunError(f"{path}, line {number}: not JSON ({error})") from error
    return [record for record in records if record["kind"] == kind]


class RunLog:
    """Writes the records of a run that starts or goes on at `step`, into the folder `run`."""

    def __init__(self, run: Path, step: int) -> None:
        path = run / NAME
        if path.exists():
            write_atomically(path, _up_to(path.read_bytes(), step))
        self._path, self._file = path, path.open("a")
        self._board = _Board.open(run / "tensorboard", step)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One record: numbers, lists of numbers, or dicts of these by name."""
        with named_errors(self._path):
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
        if self._board is not None:
            self._board.write(kind, step, values)

    def sync(self) -> None:
        """Waits until all records are on the disk: a checkpoint must not be newer than the log."""
        with named_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the log."""
        with named_errors(self._path):
            self._file.close()
        if self._board is not None:
            self._board.close()


def _up_to(content: bytes, step: int) -> bytes:
    """The whole lines of steps up to `step`."""
    kept = []
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            break  # a killed process leaves at most its last line incomplete
        if record["step"] <= step and line.endswith(b"\n"):
            kept.append(line)
    return b"".join(kept)


class _Board:
    """Scalars in TensorBoard's event files, by TensorBoard's own writer (no other framework is needed)."""

    def __init__(self, folder: Path, step: int, writer: Any, event: Any, summary: Any) -> None:
        self._writer, self._event, self._summary = writer(str(folder)), event, summary
        start = event.SessionLog(status=event.SessionLog.START)  # TensorBoard forgets what came after this step
        self._writer.add_event(event.Event(wall_time=time.time(), step=step + 1, session_log=start))

    @classmethod
    def open(cls, folder: Path, step: int) -> "_Board | None":
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            return None
        return cls(folder, step, EventFileWriter, event_pb2, summary_pb2.Summary)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(values, kind)]
        event = self._event.Event(wall_time=time.time(), step=step, summary=self._summary(value=scalars))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


def _scalars(values: Any, name: str) -> list[tuple[str, float]]:
    if isinstance(values, dict):
        return [pair for key, value in values.items() for pair in _scalars(value, f"{name}/{key}")]
    if isinstance(values, list):
        return [pair for index, value in enumerate(values) for pair in _scalars(value, f"{name}/{index}")]
    return [(name, float(values))]
