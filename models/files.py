"""Writes files atomically, and reads untrusted files safely.

After a crash, a file has either all its old content or all its new content. Messages of system errors, such as a full disk, name the file.
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
    """Returns a record as JSON with a checksum under the key "sha256". If `indent` is None, the JSON has a single line."""
    return json.dumps({**record, "sha256": _digest(record)}, indent=indent).encode()


def unsigned(content: bytes, *, always: bool = True) -> dict[str, Any]:
    """Returns the record that `signed` encoded. Raises ValueError if the checksum is wrong, or if it is missing and `always` is true."""
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
    """Opens a file for `open(..., opener=regular)`. Raises OSError, naming the file, for a device or a pipe, which could block a reader."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(mode := os.fstat(descriptor).st_mode) or stat.S_ISDIR(mode):  # `open` rejects folders
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, most: float = math.inf) -> bytes:
    """Returns the content of a regular file. Raises OSError, naming the file, if the file exceeds `most` bytes or the machine's memory."""
    with open(path, "rb", opener=regular) as file:
        if (size := os.fstat(file.fileno()).st_size) > min(most, of_machine()):
            raise OSError(errno.EFBIG, f"{size:,} bytes exceed the limit", str(path))
        return file.read()


def content_of(path: Path, kind: type[SpecError] = CheckpointError) -> bytes:
    """Returns the content of a file. Raises an error of the class `kind` if the file cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, kind: type[SpecError] = CheckpointError, expected: type = dict) -> Any:
    """Returns the JSON value in a file. Raises an error of the class `kind` unless the file contains a value of the type `expected`."""
    return parsed(content_of(path, kind), str(path), expected, kind)


def parsed(content: str | bytes, name: str, expected: type = dict, kind: type[SpecError] = CheckpointError) -> Any:
    """Returns the value of a JSON text. Raises `kind`, with a message that begins with `name`, unless the value has the type `expected`."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise kind(f"{name}: not JSON ({error})") from error
    if not isinstance(value, expected):
        raise kind(f"{name}: not a JSON {'object' if expected is dict else 'list'}")
    return value


def read_record(path: Path, *, always: bool = True) -> dict[str, Any]:
    """Returns the record in a file written with `signed`. Raises ValueError for a damaged file and OSError for an unreadable file."""
    return unsigned(read_file(path, RECORD), always=always)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the content under a temporary name, flushes the file to disk, and renames the file to `path`."""
    temporary = unfinished(path)
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # an incomplete file, for example after a full disk, is useless
        raise
    sync_directory(path.parent)


def unfinished(path: Path) -> Path:
    """Returns a temporary name for a file that is being written. Since the name is random, no other process can place a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def sweep(folder: Path) -> None:
    """Removes the temporary files and folders that a killed process left behind."""
    for rest in folder.glob(".*.tmp"):
        if rest.is_dir() and not rest.is_symlink():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file and waits until the file is on disk. Raises FileExistsError if a file or a link exists at `path`."""
    with named_errors(path), path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Waits until the entries of a folder are on disk. Does nothing on systems other than POSIX, which cannot sync folders."""
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
    """Adds the name of the file to an OSError without a file name, such as an error from writing or flushing."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
