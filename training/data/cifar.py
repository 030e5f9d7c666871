"""Reads CIFAR-10 and CIFAR-100 in the binary version, from the folders `cifar-10-batches-bin` and `cifar-100-binary`.

A file is a sequence of records without a header. A record is one byte with the label (CIFAR-100: two bytes, the coarse label first) and
3072 bytes with the 32 x 32 red, green and blue values of the image, each in row-major order (Krizhevsky, "The CIFAR-10 and CIFAR-100
datasets", section "Binary version"). In CIFAR-100, the fine label is the class.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.models.files import content_of
from moespec.training.data.dataset import Dataset, Split, read_names

__all__ = ["KINDS", "load_cifar"]

SHAPE = (32, 32, 3)


class Kind(NamedTuple):
    """train, test: the files of each split; each file of `train` contains `images` images. labels: the number of
    possible values of each label byte; the last label byte is the class. names: the file with the class names."""

    train: tuple[str, ...]
    images: int
    test: str
    labels: tuple[int, ...]
    names: str


BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
KINDS = {
    "cifar10": Kind(BATCHES, 10_000, "test_batch.bin", (10,), "batches.meta.txt"),
    "cifar100": Kind(("train.bin",), 50_000, "test.bin", (20, 100), "fine_label_names.txt"),
}
TEST = 10_000


def load_cifar(folder: Path, name: str) -> Dataset:
    """Reads the data set `name`, a key of `KINDS`, from `folder`. The test images are the validation split.

    Without a file of class names, the classes are numbered. Raises DataError, naming the file, for a missing or damaged file.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    kind = KINDS[name]
    path, count = folder / kind.names, kind.labels[-1]
    classes = read_names(path, str(path)) if path.exists() else tuple(map(str, range(count)))
    if len(classes) != count:
        raise DataError(f"{path}: expected {count} class names, got {len(classes)}")
    train = _split([_read(folder / file, kind.images, kind.labels) for file in kind.train])
    return Dataset(name, train, _split([_read(folder / kind.test, TEST, kind.labels)]), classes, SHAPE, 255)


def _read(path: Path, count: int, values: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the pixels `(images, 3072)` in the order of the file, and the labels `(images,)`."""
    length = len(values) + math.prod(SHAPE)
    content = content_of(path, DataError)
    if len(content) != count * length:
        expected = f"{count * length:,} ({count:,} images of {length:,} bytes)"
        raise DataError(f"{path}: the file has {len(content):,} bytes, expected {expected}")
    records = np.frombuffer(content, np.uint8).reshape(count, length)
    for byte, most in enumerate(values):
        if len(wrong := np.flatnonzero(records[:, byte] >= most)):
            label = records[wrong[0], byte]
            raise DataError(f"{path}: image {wrong[0]} has the label {label}, expected 0 to {most - 1}")
    return records[:, len(values) :], records[:, len(values) - 1].astype(np.int64)


def _split(files: list[tuple[NDArray[np.uint8], NDArray[np.int64]]]) -> Split:
    """Returns a split of images `(images, 32, 32, 3)` from the pixels of files, which store all red values of an image first."""
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*files, strict=True))
    colours = pixels.reshape(-1, SHAPE[2], *SHAPE[:2])
    return Split(lambda indices: np.ascontiguousarray(colours[indices].transpose(0, 2, 3, 1)), labels)
