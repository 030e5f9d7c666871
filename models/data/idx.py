"""IDX files, the format of MNIST and its relatives: four files in a folder, compressed with gzip or not.

An IDX file is: two zero bytes, a byte for the type (8: unsigned byte), a byte for the number of axes, the length of
each axis as a big-endian 32-bit integer, then the values in row-major order (LeCun, Cortes and Burges, "The MNIST
database", file format).
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.dataset import Dataset, Split, check_split
from moespec.models.errors import DataError

__all__ = ["load_idx", "read_idx"]

UNSIGNED_BYTE = 8
PARTS = {"train": "train", "validation": "t10k"}


def load_idx(folder: Path) -> Dataset:
    """The data set in `folder`: the `train-` files for training and the `t10k-` files for validation.

    Raises DataError naming the file that is missing, truncated, of another type, or does not fit its partner.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    parts = {name: _read_part(folder, prefix) for name, prefix in PARTS.items()}
    (images, labels), (held_images, held_labels) = parts["train"], parts["validation"]
    if images.shape[1:] != held_images.shape[1:]:
        raise DataError(f"{folder}: training images are {images.shape[1:]}, the t10k images {held_images.shape[1:]}")
    classes = tuple(str(label) for label in range(int(max(labels.max(), held_labels.max())) + 1))
    check_split(str(folder), labels, classes)
    train = Split(lambda indices: images[indices], labels)
    validation = Split(lambda indices: held_images[indices], held_labels)
    return Dataset(folder.name, train, validation, classes, (images.shape[1], images.shape[2], 1), 255)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes. Raises DataError naming the file and what is wrong with it."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file (it starts with {content[:4].hex() or 'nothing'})")
    kind, rank = content[2], content[3]
    if kind != UNSIGNED_BYTE:
        raise DataError(f"{path}: IDX type {kind:#04x}, expected unsigned bytes (0x08)")
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError(f"{path}: truncated in the header, {len(content)} bytes")
    shape = struct.unpack(f">{rank}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path}: {len(content) - start} values, but the header says {shape} = {math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_part(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    image_file, label_file = _find(folder, prefix, "images", 3), _find(folder, prefix, "labels", 1)
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or 0 in images.shape:
        raise DataError(f"{image_file}: shape {images.shape}, expected (images, height, width)")
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataError(f"{label_file}: shape {labels.shape} for the {len(images)} images of {image_file.name}")
    return images[..., None], labels.astype(np.int64)


def _find(folder: Path, prefix: str, kind: str, rank: int) -> Path:
    stems = [f"{prefix}-{kind}-idx{rank}-ubyte", f"{prefix}-{kind}.idx{rank}-ubyte"]
    for candidate in (folder / f"{stem}{ending}" for stem in stems for ending in ("", ".gz")):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder}: there is no file {stems[0]} or {stems[0]}.gz")
