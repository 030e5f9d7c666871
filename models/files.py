"""Writing files so that a crash leaves the old content or the new one, never a part of it."""

import os
from pathlib import Path

__all__ = ["sync_directory", "write_atomically", "write_synced"]


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file under another name, flushes it to the disk and renames it to `path`."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_synced(temporary, content)
    temporary.replace(path)
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Waits until the names in a folder are on the disk (POSIX; elsewhere the system does not offer it)."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
