"""Labels of pictures in a table: `train.csv` beside the folder `train/`, or `labels.csv` in the folder.

The table has a header and a row for each picture: its name relative to the folder, with or without its ending, in the first
column of `IMAGE` that there is, and its class in that of `LABEL`.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moespec.models.data.found import LeftOut, directories, find_files
from moespec.models.data.pictures import ENDINGS, Folder
from moespec.models.data.picturesets import Part
from moespec.models.errors import DataError
from moespec.models.files import regular

__all__ = ["IMAGE", "LABEL", "find_table", "labelled"]

IMAGE = ("image", "image_id", "filename", "file_name", "file", "path", "filepath", "id")
LABEL = ("label", "class", "class_name", "target", "category")


def find_table(folder: Path) -> Path | None:
    """The table of a folder: beside one without folders, or in one with one at most. Raises DataError if there are both."""
    inside, beside = folder / "labels.csv", Path(f"{os.path.normpath(folder)}.csv")
    found = [table for table in (inside, beside)[: max(0, 2 - len(directories(folder)))] if table.is_file()]
    if len(found) > 1:
        raise DataError(f"{folder}: has two tables of labels, {inside} and {beside}; expected one of them")
    return found[0] if found else None


def labelled(folder: Path, table: Path) -> tuple[tuple[str, ...], Part]:
    """The classes, by name or, if all are whole numbers, by number, and the pictures with a row in the table, by name.

    Raises DataError naming the line and column of a row that does not stand for one picture, or for one that another has.
    """
    left = LeftOut()
    names = find_files(folder, ENDINGS, left, known=("labels.csv",))
    pictures: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        for key in {name, os.path.splitext(name)[0]}:
            pictures[key].append(name)
    labels: dict[str, str] = {}
    lines: dict[str, int] = {}
    for line, column, key, label in _rows(table):
        where = f"{table}, line {line}, column {column!r}: {key!r:.200}"
        found = pictures.get(key) or pictures.get(key.removeprefix(f"{folder.name}/"), [])
        if len(found) != 1:
            raise DataError(f"{where} stands for " + (" and ".join(found[:2]) or f"no picture in {folder}"))
        if (first := lines.setdefault(found[0], line)) != line:
            raise DataError(f"{where} is the picture of line {first}, too; expected a row for each picture")
        labels[found[0]] = label
    for name in names:
        if name not in labels:
            left.add(f"without a row in {table.name}", name)
    numbered = all(label.isascii() and label.isdecimal() and len(label) < 10 for label in labels.values())
    classes = sorted(set(labels.values()), key=lambda label: (int(label) if numbered else 0, label))
    number = {label: index for index, label in enumerate(classes)}
    chosen = [name for name in names if name in labels]
    rows = np.array([number[labels[name]] for name in chosen], np.int64)
    return tuple(classes), Part(Folder(folder, chosen), rows, notes=left.notes(folder))


def _rows(table: Path) -> Iterator[tuple[int, str, str, str]]:
    """The line of each row, the name of the column of the pictures, the picture and the label."""
    rows: list[tuple[int, list[str]]] = []
    try:
        with open(table, encoding="utf-8-sig", newline="", opener=regular) as file:
            for row in (reader := csv.reader(file, strict=True)):
                rows += [(reader.line_num, [value.strip() for value in row])] * bool(row)
    except (OSError, ValueError, csv.Error) as error:  # ValueError: not UTF-8
        raise DataError(f"{table}, line {rows[-1][0] + 1 if rows else 1}: cannot be read ({error})") from error
    if len(rows) < 2:
        raise DataError(f"{table}: no rows in it")
    (_, header), *rows = rows
    lower, columns = [name.lower() for name in header], []
    for what, names in (("pictures", IMAGE), ("labels", LABEL)):
        if not (found := [name for name in names if name in lower]):
            raise DataError(f"{table}, line 1: no column of the {what} ({', '.join(names)}) among {', '.join(header)}")
        columns.append(lower.index(found[0]))
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{table}, line {line}: {len(row)} values, expected {len(header)} as in the header")
        if empty := [header[column] for column in columns if not row[column]]:
            raise DataError(f"{table}, line {line}, column {empty[0]!r}: empty")
        yield line, header[columns[0]], row[columns[0]], row[columns[1]]
