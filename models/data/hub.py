"""A data set of the Hugging Face library `datasets`, from files on this machine: parquet, an image folder, or `save_to_disk`.

Nothing is fetched: the path is a folder here. The column of type Image has the pictures, that of type ClassLabel, or one
called "label" of whole numbers, the labels.
"""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.captions import Captions, listed
from moespec.models.data.dataset import numbered_classes
from moespec.models.data.picturesets import Part
from moespec.models.errors import DataError
from moespec.spec.errors import ConfigError

__all__ = ["CAPTION", "find_hub"]

CAPTION = ("caption", "text", "title", "captions")
"""Columns of captions."""
HELD = ("validation", "val", "valid", "test")


@dataclass(frozen=True)
class Rows:
    """The pictures in a column of a table, whose files are mapped into memory."""

    table: Any
    column: str
    where: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, index: int) -> str:
        return f"{self.where}, row {index}"

    def open(self, index: int) -> Path | BinaryIO:
        cell = self.table[index][self.column]
        return io.BytesIO(cell["bytes"]) if cell["bytes"] is not None else Path(cell["path"])

    def stamp(self) -> str:
        return f"{self.where} {self.table._fingerprint}"


def find_hub(folder: Path, *, captions: bool = False) -> tuple[tuple[str, ...], Part, Part | None]:
    """The names of the classes and the pictures of a folder; the parts are those that the library finds there.

    captions: pairs of pictures and captions in place of labels, as of `pairs.find_pairs`.

    Raises ConfigError when `datasets` is not installed, DataError for a folder that is not there or cannot be used.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"data.name='huggingface': {error}. Install it: pip install 'moespec[huggingface]'"
        ) from error
    try:
        saved = (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
        tables = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(str(folder))
    except Exception as error:  # the library raises all kinds of exceptions, pyarrow's too
        raise DataError(f"{folder}: datasets cannot load it ({error})") from error
    if not hasattr(tables, "keys"):
        tables = {"train": tables}
    if "train" not in tables:
        raise DataError(f"{folder}: no part 'train' (the folder has {', '.join(tables)})")
    held_name = next((name for name in HELD if name in tables), None)
    read = _pairs if captions else _part
    found = [read(datasets, tables[name], f"{folder}, {name}") for name in ("train", held_name) if name]
    (classes, part), (_, held) = found[0], (*found, (None, None))[1]
    if classes is None:
        classes = numbered_classes(str(folder), part.labels, found[-1][1].labels)
    return classes, part, held


def _part(datasets: Any, table: Any, where: str) -> tuple[tuple[str, ...] | None, Part]:
    features = table.features
    named = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = [*named, *(name for name in ("label", "labels") if name in features and name not in named)]
    files = _pictures(datasets, table, where, labels, "labels (type ClassLabel, or called label)")
    column = np.asarray(table[labels[0]][:])
    if column.dtype.kind not in "iu" or not len(column) or column.min() < 0:
        raise DataError(f"{where}: the column {labels[0]!r} has no labels from 0 on in every row")
    values: NDArray[np.int64] = column.astype(np.int64)
    return tuple(features[named[0]].names) if named else None, Part(files, values)


def _pictures(datasets: Any, table: Any, where: str, others: list[str], what: str) -> Rows:
    """Its pictures, as the bytes of their files. Raises DataError without a column of them, or without `others`, which are `what`."""
    images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if not images or not others:
        missing = what if images else "pictures (type Image)"
        raise DataError(f"{where}: no column of {missing} among {', '.join(table.features)}")
    column = images[0]
    return Rows(table.cast_column(column, datasets.Image(decode=False)).select_columns([column]), column, where)


def _pairs(datasets: Any, table: Any, where: str) -> tuple[tuple[str, ...] | None, Part]:
    named = [name for name in CAPTION if name in table.features]
    files = _pictures(datasets, table, where, named, f"captions ({', '.join(CAPTION)})")
    pictures: list[int] = []
    texts: list[str] = []
    for row, value in enumerate(table[named[0]]):
        found = listed(value, f"{where}, row {row}")
        if not found:
            raise DataError(f"{where}, row {row}: no caption")
        pictures += [row] * len(found)
        texts += found
    if not pictures:
        raise DataError(f"{where}: no rows in it")
    files = replace(files, table=files.table.select(pictures))
    return (), Part(files, np.array(pictures, np.int64), Captions.of(texts))
