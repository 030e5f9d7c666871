"""Reads a data set of images with captions from one of four kinds of sources.

| `path` | images | captions |
|---|---|---|
| a folder | pictures at any depth, or all under `train/` and `val/` | `a.txt` beside `a.jpg` |
| a `.csv`, `.tsv` or `.jsonl` file | the column `image`, or another of `IMAGE` | `caption`, or another of `CAPTION` |
| a tar file, or a folder with some | members such as `a.jpg` (`shards`) | the member `a.txt` |
| a folder of the library `datasets` | the column of type Image (`hub`) | `caption`, or another of `CAPTION` |

Image paths in a table are relative to the table's folder and must stay below this folder. An image may have several captions: a list
(JSON and `datasets`) or several rows of a table. Each caption and its image form a pair, labelled with the image's number. Column names are
from Hugging Face's image folders (`file_name`, `text`) and mlfoundations/open_clip, `src/open_clip_train/params.py` (`filepath`, `title`).
"""

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moespec.models.errors import DataError
from moespec.models.files import regular
from moespec.training.data.captions import LONGEST, caption, captions_of, listed
from moespec.training.data.found import LeftOut, below, beside, directories, find_files, hidden, validation_name
from moespec.training.data.hub import CAPTION, find_hub
from moespec.training.data.pictures import ENDINGS, Folder
from moespec.training.data.picturesets import Part
from moespec.training.data.shards import find_shards

__all__ = ["IMAGE", "find_pairs"]

IMAGE = ("image", "path", "file_name", "filepath")
TABLES = {".csv": ",", ".tsv": "\t", ".jsonl": ""}


def find_pairs(path: Path) -> tuple[tuple[str, ...], Part, Part | None]:
    """Returns an empty tuple of classes, and the pairs of the training split and, if present, the validation split, ordered by name or row.

    Raises DataError if the path is missing or contains no pairs, or if an image or a caption is missing.
    """
    if path.suffix.lower() in TABLES and path.is_file():
        return (), _of_table(path), None
    if path.suffix == ".tar" or any(not hidden(str(tar.relative_to(path))) for tar in path.rglob("*.tar")):
        return find_shards(path, captions=True)
    if not path.is_dir():
        raise DataError(f"{path}: expected a folder, or a {', '.join(TABLES)} or .tar file")
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")) or any(path.rglob("*.parquet")):
        return find_hub(path, captions=True)
    held = validation_name(names := directories(path), path)
    if held is None or "train" not in names:
        return (), _of_folder(path), None
    beside(path, ("train", held), left := LeftOut(), "beside train/")
    part = _of_folder(path / "train")
    return (), replace(part, notes=(*left.notes(path), *part.notes)), _of_folder(path / held)


def _of_folder(folder: Path) -> Part:
    found = find_files(folder, {*ENDINGS, ".txt"}, left := LeftOut())
    names = [name for name in found if not name.lower().endswith(".txt")]
    if not names:
        raise DataError(f"{folder}: found no images (extensions {', '.join(sorted(ENDINGS))})")
    texts = {os.path.splitext(name)[0] for name in names}
    for name in found:
        if os.path.splitext(name)[0] not in texts:
            left.add("captions without an image", name)
    captions = captions_of(_beside(folder / name) for name in names)
    return Part(Folder(folder, names), np.arange(len(names)), captions, left.notes(folder))


def _beside(picture: Path) -> str:
    file = picture.with_suffix(".txt")
    try:
        with open(file, "rb", opener=regular) as content:
            return caption(content.read(4 * LONGEST + 1), str(file))
    except OSError as error:
        raise DataError(f"{picture} has no caption: cannot read {file.name} beside it ({error.strerror})") from error


def _of_table(path: Path) -> Part:
    images: list[str] = []
    texts: list[str] = []
    exists: dict[str, int] = {}
    for number, row in _rows(path):
        where = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected a JSON object, got {row!r:.40}")
        image, text = (next((name for name in names if name in row), None) for names in (IMAGE, CAPTION))
        if image is None or text is None:
            names, what = (IMAGE, "image") if image is None else (CAPTION, "caption")
            raise DataError(f"{where}: expected an {what} column ({', '.join(names)}), got {', '.join(map(str, row))}")
        if None in row:
            raise DataError(f"{where} has more values than columns; quote values that contain a delimiter")
        name = row[image]
        if not isinstance(name, str):
            raise DataError(f"{where}: expected the name of an image, got {name!r:.200}")
        if name not in exists:
            below(path.parent, name, where, links=False)
        found = listed(row[text], f"{where}, {name}")
        if not found:
            raise DataError(f"{where}: {name} has no caption")
        exists.setdefault(name, len(exists))
        images += [name] * len(found)
        texts += found
    if not images:
        raise DataError(f"{path}: no rows")
    labels = np.array([exists[name] for name in images], np.int64)
    return Part(Folder(path.parent, images), labels, captions_of(texts))


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the rows of a table, numbered from 1, without its header."""
    delimiter, number = TABLES[path.suffix.lower()], 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.DictReader(file, delimiter=delimiter) if delimiter else map(json.loads, _lines(file))
            for number, row in enumerate(lines, 1):
                yield number, row
    except (csv.Error, ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path}: row {number + 1} cannot be read ({error})") from error


def _lines(file: Any) -> Iterator[str]:
    """Yields the lines that are not blank. A line above the limit is cut, and the JSON parser then rejects this line."""
    while line := file.readline(16 * LONGEST):
        if line.strip():
            yield line
