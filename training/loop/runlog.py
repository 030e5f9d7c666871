"""Writes and reads the log of a run: metrics.jsonl and, if the package tensorboard is installed, TensorBoard files.

A line of metrics.jsonl is a JSON object with "kind" ("train", "evaluation" or "evaluation/NAME"), "step" (the number of updates before the
measurement), numbers by name, and "sha256" (the checksum of the other fields, absent in version 0.1). A resumed run drops the
lines after its checkpoint.
"""

import os
import time
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from moespec.models.errors import CheckpointError, RunError
from moespec.models.files import named_errors, read_file, signed, unsigned, write_atomically
from moespec.training.loop import checkpoint

__all__ = ["RunLog", "read_log", "scalars"]

NAME = "metrics.jsonl"
KINDS = {"train": {"loss", "images_per_second"}, "evaluation": {"accuracy", "images", "seconds"}}
"""Required entries of each kind of line."""


def read_log(run: Path, kind: str, *, some: bool = False) -> list[dict[str, Any]]:
    """Reads the lines of one kind in metrics.jsonl of a run, in order.

    Raises RunError for a damaged line, naming the line, and, if `some` is true, for a log without this kind. Warns if lines from before
    the newest checkpoint are missing.
    """
    path, newest = run / NAME, checkpoint.latest(run / "checkpoints")
    lines, damaged = _read(read_file(path) if path.exists() else b"")
    if damaged:
        raise RunError(f"{path}, {damaged[0]}; remove the line to continue without it")
    with suppress(CheckpointError):  # a later read of the checkpoint reports the damage
        record = {"step": 0} if newest is None else checkpoint.read_record(newest)
        there = sum(at["step"] <= record["step"] for _, at in lines)
        if few := _fewer(there, record.get("logged", 0), record["step"]):
            warnings.warn(f"{path}: {few}", stacklevel=1)
    records = [record for _, record in lines if record["kind"] == kind]
    if some and not records:
        raise RunError(f"{path}: found no line of kind {kind!r}")
    return records


class RunLog:
    """Writes the records of a run that starts or resumes at `step`. Keeps a copy of the log before dropping damaged lines.

    again: kinds of lines that the run writes again at `step`, so that the log drops the old lines. `lines` is the current number of lines.
    logged: the number of lines when the state of `step` was saved. Prints a warning if the log now has fewer lines.
    """

    def __init__(self, run: Path, step: int, again: Collection[str] = (), *, logged: int = 0) -> None:
        path, earlier, damaged = run / NAME, list[bytes](), list[str]()
        if path.exists():
            content = read_file(path)
            lines, damaged = _read(content if step else b"")  # a new run keeps no lines
            if damaged:
                aside = path.with_name(f"{NAME}.damaged-{time.time_ns()}")
                write_atomically(aside, content)
                print(f"{path}, {'; '.join(damaged)}. The run drops these lines; {aside.name} keeps the full log")
            earlier = [line for line, at in lines if at["step"] < step + (at["kind"] not in again)]
            write_atomically(path, b"".join(line + b"\n" for line in earlier))
        if few := _fewer(len(earlier) + len(damaged), logged, step):
            print(f"{path}: {few}. The run continues without the missing lines")
        self.lines = len(earlier)
        self._path, self._file = path, path.open("a")
        self._board = _Board.open(run / "tensorboard", step)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Writes one record of values by name: numbers, lists of numbers, or dicts of numbers and lists."""
        with named_errors(self._path):
            self._file.write(signed({"kind": kind, "step": step, **values}, indent=None).decode() + "\n")
            self._file.flush()
        self.lines += 1
        if self._board is not None:
            self._board.write(kind, step, values)

    def sync(self) -> None:
        """Waits until all records are on disk, so that no checkpoint is newer than the log. Raises RunError if the log has disappeared."""
        with named_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        if not (self._path.exists() and os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))):
            raise RunError(f"{self._path}: was removed or replaced during the run; the last steps are not saved")

    def close(self) -> None:
        """Closes the log."""
        with named_errors(self._path):
            self._file.close()
        if self._board is not None:
            self._board.close()


def _fewer(there: int, logged: int, step: int) -> str:
    """Returns the error for a log that has fewer than `logged` lines up to a step, or "" if no line is missing."""
    return f"has {there} of the {logged} lines written up to step {step}" if there < logged else ""


def _read(content: bytes) -> tuple[list[tuple[bytes, dict[str, Any]]], list[str]]:
    """Returns the lines of a log with their records, and the errors of damaged lines. Skips an unfinished last line."""
    found, damaged = [], []
    *lines, rest = content.split(b"\n")
    whole = rest[-3:-1] == b'"}'  # the last line is complete and lacks only its line break
    for number, line in enumerate([*lines, rest] if whole else lines, start=1):
        try:
            found.append((line, _record(line)))
        except (ValueError, OverflowError, RecursionError) as error:
            damaged.append(f"line {number}: {error}")
    return found, damaged


def _record(line: bytes) -> dict[str, Any]:
    """Parses a line of the log. Raises ValueError for content that `RunLog.write` cannot produce."""
    record = unsigned(line, always=False)
    kind = record.get("kind")
    if not isinstance(kind, str) or kind.partition("/")[0] not in KINDS or type(record.get("step")) is not int:
        raise ValueError('damaged: expected a record with "kind" and "step"')
    if missing := sorted(KINDS.get(kind, set()) - record.keys()):
        raise ValueError(f"damaged: the record of kind {kind} lacks {missing[0]!r}")
    scalars({**record, "kind": 0}, kind)
    return record


class _Board:
    """Writes scalars to TensorBoard's event files with the writer of TensorBoard, which needs no machine-learning framework."""

    def __init__(self, folder: Path, step: int, writer: Any, event: Any, summary: Any) -> None:
        self._writer, self._event, self._summary = writer(str(folder)), event, summary
        start = event.SessionLog(status=event.SessionLog.START)  # makes TensorBoard discard all events after this step
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
        points = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(values, kind)]
        event = self._event.Event(wall_time=time.time(), step=step, summary=self._summary(value=points))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


def scalars(values: Any, name: str) -> list[tuple[str, float]]:
    """Returns the numbers in nested dicts and lists, each with a name such as `train/moe/1/load/0`. Raises ValueError for other values."""
    if isinstance(values, dict):
        return [pair for key, value in values.items() for pair in scalars(value, f"{name}/{key}")]
    if isinstance(values, list):
        return [pair for index, value in enumerate(values) for pair in scalars(value, f"{name}/{index}")]
    if not isinstance(values, int | float):
        raise ValueError(f"damaged: {name}={values!r}, expected a number")
    return [(name, float(values))]
