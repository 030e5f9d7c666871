"""A data set from a folder of images: one folder per class, by itself or under `train/` and `val/`.

photos/cat/1.jpg                    photos/train/cat/1.jpg                  photos/train/1.jpg
photos/dog/2.png          or        photos/validation/cat/7.jpg    or       photos/train.csv       (`labels`)

Pictures in folders below that of a class are of the class. Hidden files and folders are left out, among them what macOS puts
beside pictures (`._1.jpg`, `__MACOSX`). The validation part may have any name of `found.HELD`.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.found import LeftOut, beside, directories, find_files, validation_name
from moespec.models.data.labels import find_table, labelled
from moespec.models.data.pictures import ENDINGS, Folder
from moespec.models.data.picturesets import Part
from moespec.models.errors import DataError

__all__ = ["find_folder", "find_pictures"]


def find_folder(folder: Path) -> tuple[tuple[str, ...], Part, Part | None]:
    """The names of the classes and the images under `folder`, in the order of class and file names.

    Without `train/`, or with a table of labels and without a validation part, there is one part. Raises DataError for a folder
    that is not there, has no class, or has a class without images (naming it).
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if "train" not in (names := directories(folder)):
        return *_scan(folder), None
    held_name, left = validation_name(names, folder), LeftOut()
    if held_name is None and find_table(folder / "train") is None:
        way = f"to hold a part of train/ out, name {folder / 'train'}"
        raise DataError(f"{folder / 'val'}: there is no such folder, nor validation/, next to train/; {way}")
    beside(folder, ("train", "train.csv", held_name, f"{held_name}.csv"), left, "beside train/")
    classes, part = _scan(folder / "train", left.notes(folder))
    if held_name is None:
        return classes, part, None
    held_classes, held = _scan(folder / held_name)
    if held_classes != classes:
        raise DataError(f"{folder / held_name}: classes {held_classes}, but train/ has {classes}")
    return classes, part, held


def find_pictures(path: Path) -> tuple[Folder, tuple[str, ...]]:
    """All pictures below a folder, in the order of their names, or the one of a file; and what is to be said of other files.

    Raises DataError for a path that is not there, and a folder without pictures.
    """
    if not os.path.exists(path):  # False, not an error, for a name that no file can have
        raise DataError(f"{str(path)!r}: there is no such file or folder")
    if path.is_file():
        return Folder(path.parent, [path.name]), ()
    names = sorted(find_files(path, ENDINGS, left := LeftOut()))
    if not names:
        raise DataError(f"{str(path)!r}: no pictures in it (endings {', '.join(sorted(ENDINGS))})")
    return Folder(path, names), left.notes(path)


def _scan(folder: Path, notes: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Part]:
    classes, left = directories(folder), LeftOut()
    if (table := find_table(folder)) is not None:
        names, part = labelled(folder, table)
        return names, replace(part, notes=(*notes, *part.notes))
    if not classes:
        raise DataError(
            f"{folder}: no folders of classes in it, and no table of labels ({folder.name}.csv, labels.csv)"
        )
    beside(folder, classes, left, "beside the folders of classes")
    names: list[str] = []
    labels: list[NDArray[np.int64]] = []
    for label, directory in enumerate(classes):
        found = find_files(folder, ENDINGS, left, start=f"{directory}/")
        if not found:
            raise DataError(f"{folder / directory}: the class has no images (endings {', '.join(sorted(ENDINGS))})")
        names += found
        labels.append(np.full(len(found), label, np.int64))
    part = Part(Folder(folder, names), np.concatenate(labels), notes=(*notes, *left.notes(folder)))
    return tuple(classes), part
