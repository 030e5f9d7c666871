"""A data set from a folder of images: one folder per class, by itself or under `train/` and `val/`.

photos/cat/1.jpg                    photos/train/cat/1.jpg
photos/dog/2.png          or        photos/val/cat/7.jpg
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.pictures import Folder
from moespec.models.data.picturesets import Part
from moespec.models.errors import DataError

__all__ = ["find_folder", "find_pictures"]

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


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


def find_pictures(path: Path) -> Folder:
    """All pictures below a folder, in the order of their names, or the one of a file. Hidden files and folders are left out.

    Raises DataError for a path that is not there, and a folder without pictures.
    """
    if not os.path.exists(path):  # False, not an error, for a name that no file can have
        raise DataError(f"{str(path)!r}: there is no such file or folder")
    if path.is_file():
        return Folder(path.parent, [path.name])
    found = [file.relative_to(path) for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()]
    names = sorted(str(name) for name in found if not any(part.startswith(".") for part in name.parts))
    if not names:
        raise DataError(f"{str(path)!r}: no pictures in it (endings {', '.join(sorted(ENDINGS))})")
    return Folder(path, names)


def _scan(folder: Path) -> tuple[tuple[str, ...], Part]:
    directories = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not directories:
        raise DataError(f"{folder}: no folders of classes in it")
    names: list[str] = []
    labels: list[NDArray[np.int64]] = []
    for label, directory in enumerate(directories):
        pictures = sorted(file for file in directory.iterdir() if file.suffix.lower() in ENDINGS)
        if not pictures:
            raise DataError(f"{directory}: the class has no images (endings {', '.join(sorted(ENDINGS))})")
        names += [f"{directory.name}/{file.name}" for file in pictures]
        labels.append(np.full(len(pictures), label, np.int64))
    return tuple(directory.name for directory in directories), Part(Folder(folder, names), np.concatenate(labels))
