"""Resizes the images of a data set that is stored as arrays: IDX files, `.npz` files and the digits."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moespec.models.memory import check_memory
from moespec.spec.errors import ConfigError
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.pictures import middle

__all__ = ["resized"]


def resized(dataset: Dataset, size: int | None) -> Dataset:
    """The data set with images `(size, size, channels)`: the shorter side is resized (bicubic), the middle square is cut out.

    An image is resized when it is read, so the arrays in memory do not grow. Random crops are cut out of the original image.
    With `size` None the data set is returned unchanged. Raises ConfigError for a size below 1 or one for
    which the machine has no memory, and for images that have neither 1 nor 3 channels.
    """
    height, width, channels = dataset.shape
    if size is None or height == width == size:
        return dataset
    if size < 1:
        raise ConfigError(f"model.image_size={size!r}: expected an integer >= 1")
    check_memory(f"model.image_size={size!r}", size * size * channels)
    if channels not in (1, 3):
        raise ConfigError(
            f"model.image_size={size!r}: the data set {dataset.name!r} has {height} x {width} pixels, and only images of 1 or "
            f"3 channels can be resized, these have {channels}"
        )

    def split(part: Split) -> Split:
        return Split(partial(_read, part, size, dataset.maximum), part.labels, part.picture)

    note = f"images of {height} x {width} pixels are resized to {size} x {size}"
    return replace(
        dataset,
        train=split(dataset.train),
        validation=split(dataset.validation),
        shape=(size, size, channels),
        notes=(*dataset.notes, note),
    )


def _read(part: Split, size: int, maximum: int, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Images at `indices` (images,), as (images, size, size, channels); values above white, which bicubic makes, become white."""
    squares = np.stack([middle(part.picture(int(index)), size, 0) for index in indices])
    return np.minimum(squares, np.uint8(maximum)).reshape(*squares.shape[:3], -1)
