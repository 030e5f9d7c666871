"""A data set: labelled images in a training and a validation split.

Pixel values range from 0 to `maximum`. A model receives `(x / maximum - mean) / std`, by default `2 x / maximum - 1`, in [-1, 1].
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moespec.models.errors import DataError
from moespec.models.files import read_file
from moespec.spec.errors import ConfigError
from moespec.spec.own import shown
from moespec.training.data.captions import Captions
from moespec.training.data.pictures import Pictures

__all__ = ["Dataset", "Split", "array_split", "as_picture", "held_out", "numbered_classes", "read_names"]

LOOKED_AT, HEAD = 4096, 2**14
"""Limits of the digest of the contents: the number of images of a split, and the number of bytes read from each image file."""


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a data set. `read(indices)` returns images as uint8 `(images, height, width, channels)`.

    `whole(index)` returns the picture from which an image was cropped, by default the image itself. pictures: the files that `read` opens,
    if any. captions: one caption for each image, only in a data set of pairs; the label of a pair is the number of its picture.
    ids: the token ids of the captions, `(images, length)`. features: the output of a locked tower for the images, `(images, width)`.
    """

    read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]
    labels: NDArray[np.int64]
    whole: Callable[[int], Image.Image] | None = None
    captions: Captions | None = None
    ids: NDArray[np.int32] | None = None
    features: NDArray[np.float32] | None = None
    pictures: Pictures | None = None

    def picture(self, index: int) -> Image.Image:
        """Returns an uncropped picture, of mode L or RGB."""
        return as_picture(self.read(np.array([index]))[0]) if self.whole is None else self.whole(index)

    def name(self, index: int) -> str:
        """Returns the name of an image: its file name, or its number."""
        return f"image {index}" if self.pictures is None else self.pictures.name(index)

    def __len__(self) -> int:
        return len(self.labels)

    def stamp(self, part: str) -> dict[str, Any]:
        """Returns the number of images, and digests that identify the images independently of the files' folder and modification times.

        The digest of the contents covers at most `LOOKED_AT` evenly spaced images: pixels of arrays, or the first `HEAD` bytes of files.
        """
        names, texts, contents = (hashlib.sha256() for _ in range(3))
        texts.update(self.labels.astype("<i8").tobytes())
        if self.captions is not None:
            encoded = [text.encode() for text in self.captions]
            texts.update(b"".join(encoded) + np.cumsum([len(each) for each in encoded], dtype=np.int64).tobytes())
        if self.pictures is not None:
            for index in self.pictures.chosen.tolist():
                names.update(f"{self.pictures.files.known(index)}\n".encode(errors="surrogateescape"))
        for index in np.unique(np.linspace(0, len(self) - 1, LOOKED_AT).astype(int)).tolist():
            contents.update(self.pictures.head(index, HEAD) if self.pictures is not None else self._pixels(index))
        digests = {"names and sizes": names, "labels": texts, "contents": contents}
        entries = {"number": len(self), **{name: digest.hexdigest() for name, digest in digests.items()}}
        return {f"{name} of the {part} images": value for name, value in entries.items()}

    def _pixels(self, index: int) -> bytes:
        """Returns the pixels of an image before any resizing."""
        return (self.read(np.array([index])) if self.whole is None else np.asarray(self.whole(index))).tobytes()


@dataclass(frozen=True)
class Dataset:
    """A training and a validation split, the class names, the shape of an image and the value of white.

    mean, std: one number, or one per channel; a channel value (white is 1) becomes `(value - mean) / std`.
    notes: lines printed when training begins. held_out: whether the validation images were taken from the training images.
    """

    name: str
    train: Split
    validation: Split
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    maximum: int
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    notes: tuple[str, ...] = ()
    held_out: bool = False

    @cached_property
    def stamp(self) -> dict[str, Any]:
        """The digests of both splits; see `Split.stamp`."""
        return self.train.stamp("training") | self.validation.stamp("validation")

    def with_splits(self, change: Callable[[str, Split], Split]) -> "Dataset":
        """Returns the data set with its splits replaced by `change("train", split)` and `change("validation", split)`."""
        return replace(self, train=change("train", self.train), validation=change("validation", self.validation))

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The factor and the offset of the model's input `factor x - offset`: one number for all channels, or one per channel."""
        std = np.asarray(self.std)
        return tuple((1 / (self.maximum * std)).tolist()), tuple((np.asarray(self.mean) / std).tolist())

    def normalize(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Converts pixel values from 0 to `maximum` to the model's input in float32."""
        factor, offset = (np.asarray(values, np.float32) for values in self.scale)
        return np.multiply(images, factor, dtype=np.float32) - offset


def array_split(images: NDArray[np.uint8], labels: NDArray[np.integer[Any]]) -> Split:
    """Returns a split of images `(images, height, width, channels)`. Raises ConfigError unless each image has an integer label."""
    with np.errstate(invalid="ignore"):  # no warning for NaN and infinity, which the next check rejects
        whole = labels.astype(np.int64)
    if len(images) != len(labels) or (whole != labels).any():
        raise ConfigError(f"labels={shown(labels)}: expected {len(images)} integers, one for each image")
    return Split(lambda indices: images[indices], whole)


def as_picture(image: NDArray[np.uint8]) -> Image.Image:
    """Converts an array `(height, width, 1 or 3)` to a PIL image of mode L or RGB."""
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def held_out(labels: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Marks the examples to hold out for validation: the fraction `share` of each class, evenly spaced (0.2: examples 4, 9, 14, ...)."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = np.arange(len(members) + 1)
        whole = np.floor(count * share + 1e-9)
        held[members[whole[1:] > whole[:-1]]] = True
    return held


def numbered_classes(source: str, labels: NDArray[Any], held_labels: NDArray[Any]) -> tuple[str, ...]:
    """Returns the numbers from 0 to the largest label of the training and validation splits as class names.

    Raises DataError if a class has no training image.
    """
    largest = max(int(part.max()) for part in (labels, held_labels))
    if largest >= len(labels):  # checked before `bincount` allocates an array of this size
        raise DataError(f"{source}: expected labels below {len(labels)}, the number of training images, got {largest}")
    empty = np.flatnonzero(np.bincount(labels.astype(np.int64), minlength=largest + 1) == 0)
    if len(empty):
        raise DataError(f"{source}: no training image has class {', '.join(map(str, empty))}")
    return tuple(str(label) for label in range(largest + 1))


def read_names(path: Path, called: str) -> tuple[str, ...]:
    """Reads class names from a text file, one per line. If the file is unreadable, raises a DataError that begins with `called`."""
    try:
        return tuple(line.strip() for line in read_file(path).decode().splitlines() if line.strip())
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or an invalid file name
        raise DataError(f"{called}: cannot be read ({error})") from error
