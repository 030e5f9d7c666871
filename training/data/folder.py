"""Reads a data set from a folder of images, or from its folders `train/` and `val/`. Subfolders or a table give the classes.

photos/cat/1.jpg                    photos/train/cat/1.jpg                  photos/train/1.jpg
photos/dog/2.png          or        photos/val/cat/7.jpg          or        photos/train.csv

All images below the folder of a class belong to the class. The validation split may have any name in `found.HELD`. The table is
`labels.csv` in the folder of images, or, beside a folder such as `train/`, the file `train.csv`. The table has a header and one row per
image. The column of image paths, with or without extensions, has a name from `IMAGE`. The column of classes has a name from `LABEL`.
"""

import csv
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from moespec.models.errors import DataError
from moespec.models.files import regular
from moespec.training.data.found import LeftOut, beside, directories, find_files, identity, validation_name
from moespec.training.data.pictures import ENDINGS, Folder
from moespec.training.data.picturesets import Part

__all__ = ["find_folder", "find_pictures"]

IMAGE = ("image", "image_id", "filename", "file_name", "file", "path", "filepath", "id")
LABEL = ("label", "class", "class_name", "target", "category")


def find_folder(folder: Path) -> tuple[tuple[str, ...], Part, Part | None]:
    """Returns the class names and the images under `folder`, ordered by class and file name.

    Without `train/` and `val/` there is one split. Raises DataError for a missing folder, a folder without classes or images, and
    a table row without a matching image.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if "train" not in (names := directories(folder)):
        return *_scan(folder), None
    held_name, left = validation_name(names, folder), LeftOut()
    if held_name is None and _table(folder / "train") is None:
        raise DataError(f"{folder / 'val'}: expected this folder, or validation/, next to train/")
    beside(folder, ("train", "train.csv", held_name, f"{held_name}.csv"), left, "beside train/")
    classes, part = _scan(folder / "train")
    part = replace(part, notes=(*left.notes(folder), *part.notes))
    if held_name is None:
        return classes, part, None
    held_classes, held = _scan(folder / held_name)
    if held_classes != classes:
        raise DataError(f"{folder / held_name}: has classes {held_classes}, but train/ has {classes}")
    return classes, part, held


def find_pictures(path: Path) -> tuple[Folder, tuple[str, ...]]:
    """Returns the images below a folder, ordered by name, and notes on ignored files. If `path` is a file, returns only this file.

    Raises DataError for a missing path or a folder without images.
    """
    if not os.path.exists(path):  # `exists` returns False for an invalid file name
        raise DataError(f"{str(path)!r}: no such file or folder")
    if path.is_file():
        return Folder(path.parent, [path.name]), ()
    names = sorted(find_files(path, ENDINGS, left := LeftOut()))
    if not names:
        raise DataError(f"{str(path)!r}: found no images (extensions {', '.join(sorted(ENDINGS))})")
    return Folder(path, names), left.notes(path)


def _scan(folder: Path) -> tuple[tuple[str, ...], Part]:
    classes, left = directories(folder), LeftOut()
    label_of: dict[str, str] = {}
    if (table := _table(folder)) is not None:
        names = find_files(folder, ENDINGS, left, known=("labels.csv",))
        label_of = _labels(folder, table, names)
        classes = sorted(set(label_of.values()), key=lambda label: (len(label) * label.isdecimal(), label))
        for name in names:
            if name not in label_of:
                left.add(f"without a row in {table.name}", name)
    elif not classes:
        raise DataError(f"{folder}: expected class folders or a label table ({folder.name}.csv, labels.csv)")
    else:
        beside(folder, classes, left, "beside the folders of classes")
        seen = {identity(folder / name) for name in ("", *classes)}  # a link from one class to another is skipped
        for label in classes:
            found = find_files(folder, ENDINGS, left, start=f"{label}/", seen=seen)
            if not found:
                raise DataError(f"{folder / label}: found no images (extensions {', '.join(sorted(ENDINGS))})")
            label_of |= dict.fromkeys(found, label)
    number = {label: index for index, label in enumerate(classes)}
    labels = np.array([number[label] for label in label_of.values()], np.int64)
    return tuple(classes), Part(Folder(folder, list(label_of)), labels, notes=left.notes(folder))


def _table(folder: Path) -> Path | None:
    """Returns `labels.csv` in a folder with at most one subfolder, or the table beside a folder with none. DataError if both exist."""
    tables = folder / "labels.csv", Path(f"{os.path.normpath(folder)}.csv")
    found = [table for table in tables[: max(0, 2 - len(directories(folder)))] if table.is_file()]
    if len(found) > 1:
        raise DataError(f"{folder}: found two label tables, {found[0]} and {found[1]}; expected one")
    return found[0] if found else None


def _labels(folder: Path, table: Path, names: list[str]) -> dict[str, str]:
    """Returns the label of each image that has a row in the table, ordered by name."""
    pictures: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        for key in {name, os.path.splitext(name)[0]}:
            pictures[key].append(name)
    line, label_of, line_of = 1, dict[str, str](), dict[str, int]()
    try:
        with open(table, encoding="utf-8-sig", newline="", opener=regular) as file:
            rows = csv.DictReader(file, strict=True)
            header = {name.strip().lower(): name for name in rows.fieldnames or ()}
            if len(header) < len(rows.fieldnames or ()):
                raise DataError(f"{table}, line 1: duplicate column names among {', '.join(rows.fieldnames or ())}")
            for row in rows:
                line = rows.line_num
                image, label = (next((header[name] for name in each if name in header), "") for each in (IMAGE, LABEL))
                if not image or not label:
                    wanted = " or ".join(LABEL if image else IMAGE)
                    raise DataError(f"{table}, line 1: expected a column {wanted}, got {', '.join(header)}")
                if None in row or None in row.values() or not row[label].strip():
                    raise DataError(f"{table}, line {line}, column {label!r}: no label, or not the columns of line 1")
                key = row[image].strip()
                found = pictures[key.removeprefix(f"{folder.name}/")]
                where = f"{table}, line {line}, column {image!r}: {key!r:.200}"
                if len(found) != 1:
                    raise DataError(f"{where} matches {' and '.join(found[:2]) or f'no picture in {folder}'}")
                if (first := line_of.setdefault(found[0], line)) != line:
                    raise DataError(f"{where} repeats the image of line {first}; expected one row for each image")
                label_of[found[0]] = row[label].strip()
    except DataError:
        raise
    except (OSError, ValueError, csv.Error) as error:  # ValueError: not UTF-8
        raise DataError(f"{table}, line {line}: cannot be read ({error})") from error
    if not label_of:
        raise DataError(f"{table}: no rows")
    return {name: label_of[name] for name in names if name in label_of}
