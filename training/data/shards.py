"""Reads a data set from WebDataset shards: tar files in which the members of an example share a name, such as `cat12.jpg` and `cat12.cls`.

The label is the integer in the member `.cls`, or the entry "label" or "cls" of the member `.json`; the member `.txt` is a caption.
The shards are indexed once. If the folder is writable, the index is saved in the folder as `moespec-index.npz`, or `moespec-captions.npz`
with captions, and rebuilt when a shard changes. Images are read in any order directly from the tar files.
Shards must not be compressed.

Source of the convention: webdataset/webdataset, src/webdataset/tariterators.py, base_plus_ext and group_by_keys.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.models.files import regular, signed, unsigned, write_atomically
from moespec.models.memory import check_unpacked
from moespec.training.data.captions import LONGEST, caption, captions_of
from moespec.training.data.dataset import numbered_classes
from moespec.training.data.found import HELD, LeftOut, find_files, hidden
from moespec.training.data.pictures import ENDINGS
from moespec.training.data.picturesets import Part
from moespec.training.progress_bar import Bar
from moespec.version import version

__all__ = ["Shards", "find_shards"]

INDEX, OF_CAPTIONS, FORMAT = "moespec-index.npz", "moespec-captions.npz", "moespec index of shards 2"
HELD_WORD = re.compile(f"{'|'.join(sorted(HELD, reverse=True))}|test")
"""Words that mark the path of a validation shard, if the paths of other shards contain the word train."""
LIMITS = {".cls": 64, ".json": 2**20, ".txt": 4 * LONGEST}
"""Maximum sizes in bytes of the members that contain a label, JSON with a label, and a caption."""


@dataclass(frozen=True)
class Shards:
    """Images in tar files: the file number, offset, size and name of each image."""

    paths: Sequence[str]
    shard: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    names: NDArray[Any]

    def __len__(self) -> int:
        return len(self.shard)

    def name(self, index: int) -> str:
        return f"{self.paths[self.shard[index]]}:{self.names[index]}"

    def open(self, index: int) -> io.BytesIO:
        with open(self.paths[self.shard[index]], "rb") as file:
            file.seek(int(self.offset[index]))
            return io.BytesIO(file.read(int(self.size[index])))

    def known(self, index: int) -> str:
        return f"{self.names[index]} {self.size[index]}"


def find_shards(folder: Path, *, captions: bool = False) -> tuple[tuple[str, ...], Part, Part | None]:
    """Returns the class names, which are the numbers from 0 to the largest label, and the images of each split, ordered by shard name.

    Shards with the word val or test in their paths form the validation split if other shards have the word train (`train-000.tar` and
    `val-000.tar`, or folders `train/` and `val/`). Otherwise, all shards form one split. captions: whether to read captions instead of
    labels, see `pairs.find_pairs`. Raises DataError naming a shard that is not a tar file, or a member without label or caption.
    """
    left, whole = LeftOut(), folder.is_dir()
    root, known = folder if whole else folder.parent, (INDEX, OF_CAPTIONS)
    paths = [root / name for name in (find_files(root, (".tar",), left, known=known) if whole else [folder.name])]
    if not paths or not folder.exists():
        raise DataError(f"{folder}: {'found no .tar files' if folder.is_dir() else 'no such file or folder'}")
    table = _indexed(root, paths, captions=captions)
    texts = [str(path.relative_to(root)) for path in paths]
    words = {text: found.group() for text in texts if "train" not in text and (found := HELD_WORD.search(text))}
    validation = np.array([text in words for text in texts])
    held = validation[table["shard"]]
    if len(names := {word: text for text, word in words.items() if word != "test"}) > 1:
        raise DataError(f"{folder}: expected one name for validation shards, got {', '.join(sorted(names.values()))}")
    alone = not any("train" in text for text in texts) or not validation.any()
    chosen = [np.arange(len(held))] if alone else [np.flatnonzero(~held), np.flatnonzero(held)]
    parts = [_part([str(path) for path in paths], table, rows) for rows in chosen]
    if not all(len(part.labels) for part in parts):
        raise DataError(f"{folder}: the shards for {'validation' if len(parts[0].labels) else 'training'} are empty")
    classes = () if captions else numbered_classes(str(folder), parts[0].labels, parts[-1].labels)
    notes = (*left.notes(folder), *(f"{folder}: {note}" for note in table["notes"].tolist()))
    return classes, replace(parts[0], notes=notes), (*parts, None)[1]


def _part(paths: list[str], table: dict[str, NDArray[Any]], rows: NDArray[np.int64]) -> Part:
    files = Shards(paths, *(table[key][rows] for key in ("shard", "offset", "size", "name")))
    if "text" in table:
        return Part(files, np.arange(len(rows)), captions_of(_lines(table))[rows])
    return Part(files, table["label"][rows])


def _indexed(folder: Path, paths: list[Path], *, captions: bool) -> dict[str, NDArray[Any]]:
    """Returns the table of all images, with notes on skipped members. Reads the index in the folder if it is valid, else rebuilds it."""
    stamps = np.array([f"{path.relative_to(folder)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths])
    index, keys = folder / (OF_CAPTIONS if captions else INDEX), ("shard", "offset", "size", "name")
    with (
        suppress(Exception),  # a damaged index is rebuilt
        open(index, "rb", opener=regular) as file,
        np.load(file, allow_pickle=False) as saved,
    ):
        check_unpacked(saved.zip.infolist())
        table = {key: saved[key] for key in (*keys, "text" if captions else "label", "notes")}
        if {**unsigned(saved["record"].tobytes()), "version": version()} == _record(stamps, table):
            _check(table, np.array([path.stat().st_size for path in paths]))
            return table
    left = LeftOut()
    rows = [
        (number, *row)
        for number, path in enumerate(Bar(paths, unit="shard", desc="index"))
        for row in _members(path, left, captions=captions)
    ]
    if not rows:
        raise DataError(f"{folder}: found no images in the shards (extensions {', '.join(sorted(ENDINGS))})")
    *columns, values = zip(*rows, strict=True)
    table = {key: np.array(column) for key, column in zip(keys, columns, strict=True)}
    if captions:
        table["text"] = np.frombuffer("\n".join(values).encode(), np.uint8)
    else:
        table["label"] = np.array(values)
    table["notes"] = np.array(left.notes("members of shards"), str)
    content = io.BytesIO()
    arrays: dict[str, Any] = {"record": np.frombuffer(signed(_record(stamps, table)), np.uint8), **table}
    np.savez(content, **arrays)
    with suppress(OSError):
        write_atomically(index, content.getvalue())
    return table


def _lines(table: dict[str, NDArray[Any]]) -> list[str]:
    """Splits the text of an index into captions, one per line."""
    return table["text"].tobytes().decode().split("\n")


def _record(stamps: NDArray[Any], table: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Returns the record of an index: its format, the version of moespec, and a checksum of the shards' stamps and the table."""
    digest = hashlib.sha256("\n".join(stamps.tolist()).encode())
    for key, array in sorted(table.items()):
        digest.update(f"{key} {array.shape} {array.dtype.str} ".encode() + array.tobytes())
    return {"format": FORMAT, "version": version(), "content": digest.hexdigest()}


def _check(table: dict[str, NDArray[Any]], sizes: NDArray[np.int64]) -> None:
    """Raises ValueError or IndexError unless the table fits shards of the sizes `sizes`, in bytes."""
    shard, offset, size, label = (table.get(key, table["shard"]) for key in ("shard", "offset", "size", "label"))
    whole = all(array.dtype == np.int64 and array.shape == (len(shard),) for array in (shard, offset, size, label))
    texts = (table["name"], shard.shape), (table["notes"], table["notes"].shape[:1])
    if not whole or not len(shard) or any(each.dtype.kind != "U" or each.shape != shape for each, shape in texts):
        raise ValueError("dtypes or shapes")
    if min(shard.min(), offset.min(), size.min(), label.min()) < 0 or label.max() >= 2**31:
        raise ValueError("negative numbers, or large labels")
    if (offset > sizes[shard] - size).any():
        raise ValueError("places")
    if "text" in table and len(_lines(table)) != len(shard):
        raise ValueError("number of captions")


def _members(path: Path, left: LeftOut, *, captions: bool) -> Iterator[tuple[int, int, str, Any]]:
    """Yields the offset, the length, the name, and the label or caption of each picture of a shard, in order."""
    pictures: dict[str, tarfile.TarInfo] = {}
    values: dict[str, int | str] = {}
    endings = (".txt",) if captions else (".cls", ".json")
    try:
        with open(path, "rb", opener=regular) as shard, tarfile.open(fileobj=shard, mode="r:") as file:
            for member in file:
                if member.isdir():
                    continue
                if not member.isfile() or hidden(member.name):
                    left.add("hidden" if member.isfile() else "links or devices", f"{path.name}:{member.name}")
                    continue
                head, slash, base = member.name.rpartition("/")
                stem, dot, ending = base.partition(".")
                key, ending, name = f"{head}{slash}{stem}", f"{dot}{ending}".lower(), f"{path}:{member.name}"
                if ending not in {*ENDINGS, *endings}:
                    last = os.path.splitext(base)[1].lower()
                    kind = "images with another dot in the name" if last in ENDINGS else last or "without an ending"
                    left.add(kind, f"{path.name}:{member.name}")
                    continue
                if member.issparse():  # a sparse member may claim a size far beyond the size of the shard
                    raise DataError(f"{name} is a sparse file; pack it without --sparse")
                if ending in ENDINGS:
                    if key in pictures:
                        left.add("images whose name a later image has", f"{path.name}:{pictures[key].name}")
                    pictures[key] = member
                elif (content := file.extractfile(member)) is not None:
                    if member.size > LIMITS[ending] and not captions:
                        raise DataError(f"{name} has {member.size:,} bytes, expected at most {LIMITS[ending]:,}")
                    text = content.read(LIMITS[ending] + 1)
                    value = caption(text, name) if captions else _label(text, ending, name)
                    if value is not None:
                        values[key] = value
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: expected an uncompressed tar file ({error})") from error
    for key in sorted(values.keys() - pictures.keys()):
        left.add(f"{'captions' if captions else 'labels'} without an image", f"{path.name}:{key}")
    for key, member in pictures.items():
        if key not in values:
            missing = f"caption in {key}.txt" if captions else f"label in {key}.cls or {key}.json"
            raise DataError(f"{path}:{member.name}: expected a {missing}")
        yield member.offset_data, member.size, member.name, values[key]


def _label(content: bytes, ending: str, name: str) -> int | None:
    try:
        entries = {"label": int(content)} if ending == ".cls" else json.loads(content)
        labels = [entries[key] for key in ("label", "cls") if key in entries] if isinstance(entries, dict) else []
        if labels and (type(labels[0]) is not int or not 0 <= labels[0] < 2**31):
            raise ValueError(labels[0])
        return labels[0] if labels else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: expected an integer label >= 0, got {content[:40]!r}") from error
