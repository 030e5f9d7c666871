"""Writes files so that a crash leaves the complete old or the complete new content, and reads third-party files.

The messages of system errors, such as a full disk, name the file.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moespec.models.errors import CheckpointError
from moespec.models.memory import of_machine
from moespec.spec.errors import SpecError

__all__ = [
    *("RECORD", "content_of", "named_errors", "parsed", "read_file", "read_json", "read_record", "regular", "signed"),
    *("sweep", "sync_directory", "unfinished", "unsigned", "write_atomically", "write_synced"),
]

RECORD = 2**26
"""The largest size of a record, in bytes."""


def signed(record: Mapping[str, Any], *, indent: int | None = 1) -> bytes:
    """Returns JSON with a checksum of its content under the key "sha256", on one line if `indent` is None."""
    return json.dumps({**record, "sha256": _digest(record)}, indent=indent).encode()


def unsigned(content: bytes, *, always: bool = True) -> dict[str, Any]:
    """Returns the content of JSON from `signed`. Raises ValueError if the checksum is wrong or, with `always`, is missing."""
    try:
        record: dict[str, Any] = json.loads(content)
        checksum = record.pop("sha256", None) if isinstance(record, dict) else "of an object"
        intact = checksum == _digest(record) or (checksum is None and not always)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged: not JSON ({error})") from error
    if not intact:
        raise ValueError("damaged or edited: its checksum does not match its content")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for files of unknown kind. Raises OSError, which names the file, for a device or a pipe, since reading it would block."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(mode := os.fstat(descriptor).st_mode) or stat.S_ISDIR(mode):  # `open` rejects folders
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, most: float = math.inf) -> bytes:
    """Reads a regular file of at most `most` bytes that fits into the machine's memory. Raises OSError, which names the file."""
    with open(path, "rb", opener=regular) as file:
        if (size := os.fstat(file.fileno()).st_size) > min(most, of_machine()):
            raise OSError(errno.EFBIG, f"{size:,} bytes exceed the limit", str(path))
        return file.read()


def content_of(path: Path, kind: type[SpecError] = CheckpointError) -> bytes:
    """Returns the content of a file. Raises the error `kind` if the file cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, kind: type[SpecError] = CheckpointError, expected: type = dict) -> Any:
    """Returns the JSON value in a file; `expected` is its type, by default an object. Raises the error `kind` for any other content."""
    return parsed(content_of(path, kind), str(path), expected, kind)


def parsed(content: str | bytes, name: str, expected: type = dict, kind: type[SpecError] = CheckpointError) -> Any:
    """Returns the value of a JSON text, which must have the type `expected`. Raises a `kind` that begins with `name` for other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise kind(f"{name}: not JSON ({error})") from error
    if not isinstance(value, expected):
        raise kind(f"{name}: not a JSON {'object' if expected is dict else 'list'}")
    return value


def read_record(path: Path, *, always: bool = True) -> dict[str, Any]:
    """Returns the content of a file from `signed`. Raises ValueError for a damaged file, OSError for an unreadable one."""
    return unsigned(read_file(path, RECORD), always=always)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, flushes it to the disk and renames it to `path`."""
    temporary = unfinished(path)
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a partly written file, as after a full disk, is useless
        raise
    sync_directory(path.parent)


def unfinished(path: Path) -> Path:
    """Returns the temporary name of a file during writing. It is random, so no process can use it or place a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def sweep(folder: Path) -> None:
    """Removes files and folders that a killed process left half-written or half-removed."""
    for rest in folder.glob(".*.tmp"):
        if rest.is_dir() and not rest.is_symlink():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file and waits until it is on the disk. Raises FileExistsError for an existing file or link; never follows links."""
    with named_errors(path), path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Waits until the entries of a folder are on the disk. Does nothing on systems other than POSIX, which have no such call."""
    if os.name != "posix":
        return
    with named_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Adds the file name to an OSError that lacks one, such as an error from writing or flushing."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
