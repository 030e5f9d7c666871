"""Reads IDX files, the format of MNIST and its relatives: four files in a folder, plain or gzip-compressed.

An IDX file consists of two zero bytes, a byte for the type (8: unsigned byte), a byte for the number of axes, the length of
each axis as a big-endian 32-bit integer, then the values in row-major order (LeCun, Cortes and Burges, "The MNIST
database", file format).
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.models.files import regular
from moespec.training.data.dataset import Dataset, array_split, numbered_classes

__all__ = ["load_idx", "read_idx"]

UNSIGNED_BYTE = 8
DEFLATE = 1032
"""Maximum number of bytes to which one byte of a gzip file expands. If a header is wrong, this factor limits how many bytes are read."""


def load_idx(folder: Path) -> Dataset:
    """Reads the data set in `folder`: the `train-` files for training and the `t10k-` files for validation.

    Raises DataError, naming the file, if a file is missing, truncated or of another type, or if images and labels differ in number.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    (images, labels), (held_images, held_labels) = (_read_part(folder, prefix) for prefix in ("train", "t10k"))
    if images.shape[1:] != held_images.shape[1:]:
        raise DataError(f"{folder}: train has images of {images.shape[1:]}, but t10k of {held_images.shape[1:]}")
    classes = numbered_classes(str(folder), labels, held_labels)
    splits = array_split(images, labels), array_split(held_images, held_labels)
    return Dataset(folder.name, *splits, classes, (images.shape[1], images.shape[2], 1), 255)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Returns the array in an IDX file of unsigned bytes. Raises DataError, naming the file and the defect, for any other file."""
    try:
        with open(path, "rb", opener=regular) as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if compressed else raw
            shape = _shape(path, file.read(4), file)
            # Reads no more than the file can contain, since the header may be wrong.
            size = min(math.prod(shape), DEFLATE * path.stat().st_size)
            content = file.read(size)
            more = file.read(1)
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if more or len(content) != math.prod(shape):
        count = f"more than {size}" if more else len(content)
        raise DataError(f"{path}: expected {math.prod(shape)} values for the shape {shape} in the header, got {count}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _shape(path: Path, start: bytes, file: Any) -> tuple[int, ...]:
    """Reads the lengths of the axes, which follow the four bytes `start`."""
    if len(start) < 4 or start[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file (it starts with {start.hex() or 'nothing'})")
    kind, rank = start[2:]
    if kind != UNSIGNED_BYTE:
        raise DataError(f"{path}: has IDX type {kind:#04x}, expected unsigned bytes (0x08)")
    lengths = file.read(4 * rank)
    if len(lengths) < 4 * rank:
        raise DataError(f"{path}: the header is truncated to {4 + len(lengths)} bytes")
    return struct.unpack(f">{rank}I", lengths)


def _read_part(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    image_file, label_file = _find(folder, prefix, "images", 3), _find(folder, prefix, "labels", 1)
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or 0 in images.shape:
        raise DataError(f"{image_file}: has shape {images.shape}, expected (images, height, width)")
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataError(f"{label_file}: has shape {labels.shape}, expected ({len(images)},) as in {image_file.name}")
    return images[..., None], labels


def _find(folder: Path, prefix: str, kind: str, rank: int) -> Path:
    stems = [f"{prefix}-{kind}-idx{rank}-ubyte", f"{prefix}-{kind}.idx{rank}-ubyte"]
    for candidate in (folder / f"{stem}{ending}" for stem in stems for ending in ("", ".gz")):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder}: expected a file {stems[0]} or {stems[0]}.gz")
