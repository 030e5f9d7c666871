"""Lists the files of a data set that are read, and counts all other files."""

import os
from collections.abc import Collection, Container
from contextlib import suppress
from pathlib import Path

from moespec.models.errors import DataError

__all__ = ["HELD", "LeftOut", "below", "beside", "directories", "find_files", "hidden", "identity", "validation_name"]

HELD = ("val", "validation", "valid")
"""Possible names of the validation split. A data set may contain only one of these names."""


class LeftOut:
    """Counts files that are not read: for each kind, the number of files and the name of the first file."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, name: str, count: int = 1) -> None:
        """Adds `count` files of a kind."""
        number, first = self._kinds.get(kind, (0, name))
        self._kinds[kind] = number + count, first

    def notes(self, source: object) -> tuple[str, ...]:
        """Returns a note for the user that begins with `source`, or an empty tuple if all files are read."""
        kinds = ", ".join(f"{kind} {count} ({name})" for kind, (count, name) in self._kinds.items())
        return (f"{source}: ignored: {kinds}",) if kinds else ()


def hidden(name: str) -> bool:
    """Returns whether a part of a path begins with a dot or is the macOS folder `__MACOSX`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in Path(name).parts)


def entries(folder: Path, start: str = "") -> list[tuple[str, bool]]:
    """Returns the sorted names in `folder / start`, relative to `folder`, and whether each is a folder. Raises DataError on failure."""
    try:
        with os.scandir(folder / start) as found:
            return sorted((f"{start}{entry.name}", entry.is_dir()) for entry in found)
    except OSError as error:
        raise DataError(f"{folder / start}: cannot be read ({error.strerror})") from error


def directories(folder: Path) -> list[str]:
    """Returns the sorted names of the visible subfolders of a folder."""
    return [name for name, is_folder in entries(folder) if is_folder and not hidden(name)]


def beside(folder: Path, known: Container[str | None], left: LeftOut, kind: str) -> None:
    """Adds the files and subfolders of a folder, except the names in `known`, to the counts of `left`."""
    for name, is_folder in entries(folder):
        if name not in known:
            left.add("hidden" if hidden(name) else kind, f"{name}{'/' * is_folder}")


def identity(folder: Path) -> tuple[int, int]:
    """Returns the device and inode numbers of a folder, which are the same for every path to the folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def find_files(
    folder: Path,
    endings: Container[str],
    left: LeftOut,
    *,
    start: str = "",
    known: Container[str] = (),
    seen: set[tuple[int, int]] | None = None,
) -> list[str]:
    """Returns the sorted names, relative to `folder`, of the files below `folder / start`, at any depth, with one of the endings.

    Links are followed. Each folder is read once: folders in `seen` are skipped, and folders that are read are added to `seen`. All other
    files, except those in `known`, are counted in `left`.
    """
    names: list[str] = []
    seen = set() if seen is None else seen
    stack = [(start, True)]
    while stack:
        name, is_folder = stack.pop()
        ending = os.path.splitext(name)[1].lower()
        if name != start and hidden(os.path.basename(name)):
            left.add("hidden", f"{name}{'/' * is_folder}")
        elif is_folder:
            inside = f"{name}/" if name != start else start
            place = identity(folder / name)
            if name != start and place in seen:
                left.add("links to a folder already read", inside)
                continue
            seen.add(place)
            stack += reversed(entries(folder, inside))
        elif ending in endings:
            names.append(name)
        elif name not in known:
            left.add(ending or "without an ending", name)
    return names


def validation_name(names: Collection[str], source: object) -> str | None:
    """Returns the name from `HELD` that occurs in `names`, if any. Raises DataError if several names from `HELD` occur."""
    found = [name for name in HELD if name in names]
    if len(found) > 1:
        raise DataError(f"{source}: found several validation splits, {' and '.join(map(repr, found))}; expected one")
    return found[0] if found else None


def below(folder: Path, name: str | Path, where: str, *, links: bool) -> Path:
    """Returns the path of the file `name`. If the file is not below the folder, raises a DataError that begins with `where`.

    links: whether to accept a link to a file outside the folder, as in the Hugging Face cache.
    """
    root = folder.resolve()
    with suppress(OSError, ValueError, RuntimeError):  # the name may be invalid, or a circular link
        path = Path(os.path.normpath(root / name))
        if path.is_relative_to(root) and path.is_file() and (links or (root / name).resolve().is_relative_to(root)):
            return path
    raise DataError(f"{where}: {str(name)!r:.200} is not a file below {folder}")
