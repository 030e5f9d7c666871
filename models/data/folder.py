"""A data set from a folder of images: one folder per class, by itself or under `train/` and `val/`.

photos/cat/1.jpg                    photos/train/cat/1.jpg
photos/dog/2.png          or        photos/val/cat/7.jpg

Hidden files and folders are left out, among them what macOS puts beside pictures (`._1.jpg`, `__MACOSX`).
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.pictures import ENDINGS, Folder
from moespec.models.data.picturesets import Part
from moespec.models.errors import DataError

__all__ = ["directories", "find_folder", "find_pictures", "hidden"]


def find_folder(folder: Path) -> tuple[tuple[str, ...], Part, Part | None]:
    """The names of the classes and the images under `folder`, in the order of class and file names.

    Without `train/` and `val/` there is one part. Raises DataError for a folder that is not there, has no class, or has a
    class without images (naming it).
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if not (folder / "train").is_dir():
        classes, part = _scan(folder)
        return classes, part, None
    if not (folder / "val").is_dir():
        raise DataError(f"{folder / 'val'}: there is no such folder next to train/")
    classes, part = _scan(folder / "train")
    held_classes, held = _scan(folder / "val")
    if held_classes != classes:
        raise DataError(f"{folder / 'val'}: classes {held_classes}, but train/ has {classes}")
    return classes, part, held


def find_pictures(path: Path) -> tuple[Folder, tuple[str, ...]]:
    """All pictures below a folder, in the order of their names, or the one of a file; and what is to be said of other files.

    Raises DataError for a path that is not there, and a folder without pictures.
    """
    if not os.path.exists(path):  # False, not an error, for a name that no file can have
        raise DataError(f"{str(path)!r}: there is no such file or folder")
    if path.is_file():
        return Folder(path.parent, [path.name]), ()
    others: Counter[str] = Counter()
    found = filter(Path.is_file, _pictures(path, path.rglob("*"), others))
    names = [str(file.relative_to(path)) for file in found]
    if not names:
        raise DataError(f"{str(path)!r}: no pictures in it (endings {', '.join(sorted(ENDINGS))})")
    return Folder(path, sorted(names)), _notes(path, others)


def hidden(name: Path) -> bool:
    """Whether a name, or one of a folder in it, begins with a dot or is that of a folder of macOS."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.parts)


def directories(folder: Path) -> list[Path]:
    """The folders in a folder that are not hidden, in order."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not hidden(Path(entry.name)))


def _pictures(folder: Path, files: Iterable[Path], others: Counter[str]) -> Iterator[Path]:
    """Those of the files below a folder that are pictures by their names; the endings of other files are counted."""
    for file in files:
        if hidden(file.relative_to(folder)):
            continue
        if file.suffix.lower() in ENDINGS:
            yield file
        elif file.is_file():
            others[file.suffix.lower() or "none"] += 1


def _notes(folder: Path, others: Counter[str]) -> tuple[str, ...]:
    if not others:
        return ()
    count = others.total()
    files = "1 file with another ending is" if count == 1 else f"{count} files with other endings are"
    return (f"{folder}: {files} left out: {', '.join(f'{name} {each}' for name, each in others.most_common())}",)


def _scan(folder: Path) -> tuple[tuple[str, ...], Part]:
    classes = directories(folder)
    if not classes:
        raise DataError(f"{folder}: no folders of classes in it")
    names: list[str] = []
    labels: list[NDArray[np.int64]] = []
    others: Counter[str] = Counter()
    for label, directory in enumerate(classes):
        found = sorted(_pictures(directory, directory.iterdir(), others))
        if not found:
            raise DataError(f"{directory}: the class has no images (endings {', '.join(sorted(ENDINGS))})")
        names += [f"{directory.name}/{file.name}" for file in found]
        labels.append(np.full(len(found), label, np.int64))
    part = Part(Folder(folder, names), np.concatenate(labels), notes=_notes(folder, others))
    return tuple(directory.name for directory in classes), part
