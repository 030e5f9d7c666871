"""Reads a data set of the Hugging Face library `datasets` from local files: parquet, an image folder, or `save_to_disk`.

Nothing is downloaded. READMEs, scripts and archives beside parquet files or images are ignored. The column of type Image holds the images.
The labels are in the column of type ClassLabel, or in an integer column called "label" or "labels". Other columns are ignored.
"""

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from moespec.models.checks import check_installed
from moespec.models.errors import DataError
from moespec.models.files import RECORD, read_file
from moespec.training.data.captions import captions_of, listed
from moespec.training.data.dataset import numbered_classes
from moespec.training.data.found import LeftOut, below, validation_name
from moespec.training.data.pictures import ENDINGS
from moespec.training.data.picturesets import Part

__all__ = ["CAPTION", "find_hub"]

CAPTION = ("caption", "text", "title", "captions")
"""Names of caption columns."""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of the metadata files of an image folder."""


@dataclass(frozen=True)
class Rows:
    """The pictures in a column of a table; the files of the table are memory-mapped."""

    table: Any
    column: str
    root: Path
    where: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, index: int) -> str:
        return f"{self.where}, row {index}"

    def open(self, index: int) -> Path | BinaryIO:
        cell = self.table[index][self.column] or {"bytes": None, "path": None}
        if cell["bytes"] is not None:
            return io.BytesIO(cell["bytes"])
        if cell["path"] is None:
            raise DataError(f"{self.name(index)} has no image")
        return below(self.root, cell["path"], self.name(index), links=True)

    def known(self, index: int) -> str:
        return ""  # the size is unknown without reading the cell


def find_hub(folder: Path, *, captions: bool = False) -> tuple[tuple[str, ...], Part, Part | None]:
    """Returns the class names and the images of the splits that the library finds in a folder.

    captions: whether to read captions instead of labels, see `pairs.find_pairs`. Raises ConfigError if `datasets` is not installed, and
    DataError for a missing or unusable folder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    check_installed("data.name='huggingface'", "datasets", "huggingface")
    import datasets

    left = LeftOut()
    try:
        with _offline(datasets):
            saved = _saved(datasets, folder.resolve())
            tables = _found(datasets, folder.resolve(), left) if saved is None else saved
    except DataError:
        raise
    except Exception as error:  # the library raises all kinds of exceptions, including pyarrow's
        raise DataError(f"{folder}: the datasets library cannot load this folder ({error})") from error
    if not hasattr(tables, "keys"):
        tables = {"train": tables}
    if "train" not in tables:
        raise DataError(f"{folder}: expected a split named 'train', got {', '.join(tables)}")
    held_name = validation_name(list(tables), folder) or ("test" if "test" in tables else None)
    for name in sorted(tables.keys() - {"train", held_name}):
        left.add("rows of other splits", str(name), len(tables[name]))
    read = _pairs if captions else _part
    of = {name: tables[name].with_format(None) for name in ("train", held_name) if name}
    found = [read(datasets, table, folder, f"{folder}, {name}") for name, table in of.items()]
    (classes, part), (_, held) = found[0], (*found, (None, None))[1]
    if classes is None:
        classes = numbered_classes(str(folder), part.labels, found[-1][1].labels)
    return classes, replace(part, notes=left.notes(folder)), held


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Keeps the Hugging Face libraries off the network, even if already imported; by default, the libraries report each load online."""
    from huggingface_hub import constants

    config = datasets.config
    switches = [(constants, "HF_HUB_OFFLINE"), (config, "HF_HUB_OFFLINE"), (config, "HF_DATASETS_OFFLINE")]
    with ExitStack() as after:
        for module, name in switches:
            after.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, True)
        yield


def _saved(datasets: Any, folder: Path) -> Any:
    """Returns the data that `save_to_disk` wrote, or None. Raises DataError if the data refer to a file outside the folder."""
    parts, whole = [folder], folder / "dataset_dict.json"
    if whole.is_file():
        parts = [folder / name for name in json.loads(read_file(whole, RECORD))["splits"]]
    elif not (folder / "state.json").is_file():
        return None
    for part in parts:
        state = below(folder, part / "state.json", str(part), links=True)
        for file in json.loads(read_file(state, RECORD))["_data_files"]:
            below(folder, part / file["filename"], str(state), links=True)
    return datasets.load_from_disk(str(folder))


def _found(datasets: Any, folder: Path, left: LeftOut) -> Any:
    """Loads parquet files or pictures as tables. Passes the list of each split's files to the library."""
    from datasets.data_files import DataFilesDict, DataFilesList, get_data_patterns

    files = DataFilesDict.from_patterns(get_data_patterns(str(folder)), base_path=str(folder))
    if wrong := [name for names in files.values() for name in names if "::" in name]:
        raise DataError(f"{wrong[0]}: rename this file; the datasets library reads '::' as a path inside a file")
    tests: dict[str, Callable[[Path], bool]] = {  # the keys are names of the library's builders
        "parquet": lambda file: file.suffix.lower() == ".parquet" and file.name not in METADATA,
        "imagefolder": lambda file: file.suffix.lower() in ENDINGS or file.name in METADATA,
    }
    for kind, test in tests.items():
        chosen = {part: [name for name in names if test(Path(name))] for part, names in files.items()}
        if any(chosen.values()):
            for name in sorted({name for part, names in files.items() for name in names if name not in chosen[part]}):
                left.add(Path(name).suffix.lower() or "without an ending", os.path.relpath(name, folder))
            lists = {str(part): DataFilesList(chosen[part], names.origin_metadata) for part, names in files.items()}
            return datasets.load_dataset(kind, data_files={part: names for part, names in lists.items() if names})
    raise DataError(f"{folder}: found neither Parquet files nor images (extensions {', '.join(sorted(ENDINGS))})")


def _plain(table: Any, column: str) -> Any:
    """Returns the undecoded values of a column of any type."""
    return table.select_columns([column]).with_format("arrow")[:][column].to_pylist()


def _part(datasets: Any, table: Any, root: Path, where: str) -> tuple[tuple[str, ...] | None, Part]:
    features = table.features
    named = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = [*named, *(name for name in ("label", "labels") if name in features and name not in named)]
    files = _pictures(datasets, table, root, where, labels, "labels (type ClassLabel, or called label)")
    values = _plain(table, labels[0])
    if not values or not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise DataError(f"{where}, column {labels[0]!r}: expected an integer label >= 0 in each row")
    return tuple(features[named[0]].names) if named else None, Part(files, np.array(values, np.int64))


def _pictures(datasets: Any, table: Any, root: Path, where: str, others: list[str], what: str) -> Rows:
    """Returns the undecoded image column. Raises DataError without image column, or if `others` (label or caption columns) is empty."""
    images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if not images or not others:
        missing = what if images else "images (type Image)"
        raise DataError(f"{where}: expected a column of {missing}, got {', '.join(table.features)}")
    column = images[0]
    return Rows(table.cast_column(column, datasets.Image(decode=False)).select_columns([column]), column, root, where)


def _pairs(datasets: Any, table: Any, root: Path, where: str) -> tuple[tuple[str, ...] | None, Part]:
    named = [name for name in CAPTION if name in table.features]
    files = _pictures(datasets, table, root, where, named, f"captions ({', '.join(CAPTION)})")
    pictures: list[int] = []
    texts: list[str] = []
    for row, value in enumerate(_plain(table, named[0])):
        found = listed(value, f"{where}, row {row}")
        if not found:
            raise DataError(f"{where}, row {row} has no caption")
        pictures += [row] * len(found)
        texts += found
    if not pictures:
        raise DataError(f"{where}: no rows")
    files = replace(files, table=files.table.select(pictures))
    return (), Part(files, np.array(pictures, np.int64), captions_of(texts))
