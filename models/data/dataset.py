"""What a data set is: labelled images in a training and a validation part.

Images are values 0..maximum and reach a model as `2 x / maximum - 1`, in [-1, 1].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError

__all__ = ["DEFLATE", "Dataset", "Split", "held_out", "numbered_classes"]

DEFLATE = 1032
"""Bytes that a byte compressed by DEFLATE (gzip, zip) stands for, at most: what a header says has this bound."""


@dataclass(frozen=True)
class Split:
    """One part of a data set. `read(indices)` gives those images as uint8 `(images, height, width, channels)`."""

    read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A training and a validation part, the names of the classes, the shape of an image and the value of white."""

    name: str
    train: Split
    validation: Split
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    maximum: int

    def normalize(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels 0..maximum as float32 in [-1, 1]: `2 x / maximum - 1`."""
        return images.astype(np.float32) * np.float32(2 / self.maximum) - np.float32(1)


def held_out(labels: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Which examples are for validation: evenly spaced in each class's order, `share` of them (0.2: 4, 9, 14, ...)."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = np.arange(len(members) + 1)
        whole = np.floor(count * share + 1e-9)
        held[members[whole[1:] > whole[:-1]]] = True
    return held


def numbered_classes(source: str, labels: NDArray[Any], held_labels: NDArray[Any]) -> tuple[str, ...]:
    """The names of the classes 0 to the largest label of the training and the validation part.

    Raises DataError when a class has no training image.
    """
    largest = max(int(part.max()) for part in (labels, held_labels))
    if largest >= len(labels):  # before anything of that size is made
        raise DataError(f"{source}: the label {largest}, but only {len(labels)} training images for classes from 0 on")
    empty = np.flatnonzero(np.bincount(labels.astype(np.int64), minlength=largest + 1) == 0)
    if len(empty):
        raise DataError(f"{source}: no training image of class {', '.join(map(str, empty))}")
    return tuple(str(label) for label in range(largest + 1))
