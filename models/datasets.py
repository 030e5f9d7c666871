"""Data sets: labelled images in a training and a validation part, from the embedded digits or from the user's files.

`load(name, path, ...)` returns a `Dataset`. The names: `digits` (in the package), `npz` (NumPy arrays), `idx` (the
format of MNIST and Fashion-MNIST, `moespec.models.idx`) and `folder` (a folder of images per class,
`moespec.models.folder`). Images are numbers 0..maximum and reach a model as `2 x / maximum - 1`, in [-1, 1].
"""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.spec.errors import ConfigError

__all__ = ["DATASETS", "Dataset", "Split", "check_split", "held_out", "load", "load_npz"]

DATASETS = {
    "digits": "1 797 handwritten digits of 8 x 8 pixels, in the package",
    "npz": "a NumPy .npz file: train_images, train_labels, validation_images, validation_labels; or images, labels",
    "idx": "the four IDX files of MNIST or Fashion-MNIST in a folder, .gz or not",
    "folder": "a folder with one folder of images per class, or with such folders under train/ and val/",
}
DIGITS = Path(__file__).parent / "data" / "digits.npz"


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


def load(name: str, path: str = "", *, image_size: int | None = None, validation_share: float = 0.2) -> Dataset:
    """The data set `name`, read from `path`.

    image_size: side to which the images of a folder are resized and cropped (the other sets keep their own size).
    validation_share: part of each class that is held out when the files have no validation part.

    Raises ConfigError for an unknown name or a share outside (0, 1), DataError for files that cannot be used.
    """
    if name not in DATASETS:
        raise ConfigError(f"data.name={name!r}: expected one of {', '.join(DATASETS)}")
    if not 0 < validation_share < 1:
        raise ConfigError(f"data.validation_share={validation_share!r}: expected a number between 0 and 1")
    if name == "digits":
        return load_npz(DIGITS, name="digits", validation_share=validation_share)
    if not path:
        raise ConfigError(f"data.path is not set: the data set {name!r} is read from a path ({DATASETS[name]})")
    if name == "npz":
        return load_npz(Path(path), name=Path(path).stem, validation_share=validation_share)
    if name == "idx":
        from moespec.models.idx import load_idx

        return load_idx(Path(path))
    from moespec.models.folder import load_folder

    if image_size is None:
        raise ConfigError("model.image_size is not set: images of a folder are resized to it")
    return load_folder(Path(path), image_size=image_size, validation_share=validation_share)


def load_npz(path: Path, *, name: str, validation_share: float) -> Dataset:
    """A data set from a NumPy file of uint8 images `(N, H, W)` or `(N, H, W, channels)` and integer labels `(N,)`.

    Arrays: `train_images`, `train_labels`, `validation_images`, `validation_labels`, or `images` and `labels`, of
    which `held_out` says what is held out. Optional: `maximum` (the value of white, 255 unless given). Nothing is
    unpickled. Raises DataError naming the file.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{path}: not a readable .npz file of plain arrays ({error})") from error
    maximum = int(arrays.get("maximum", 255))
    if "train_images" in arrays:
        parts = [_npz_part(path, arrays, f"{part}_images", f"{part}_labels") for part in ("train", "validation")]
    else:
        images, labels = _npz_part(path, arrays, "images", "labels")
        held = held_out(labels, validation_share)
        parts = [(images[~held], labels[~held]), (images[held], labels[held])]
    (images, labels), (held_images, held_labels) = parts
    if held_images.shape[1:] != images.shape[1:]:
        raise DataError(f"{path}: train_images {images.shape} and validation_images {held_images.shape} differ in size")
    if not maximum > 0 or max(images.max(), held_images.max()) > maximum:
        raise DataError(f"{path}: maximum={maximum}, but pixels reach {max(images.max(), held_images.max())}")
    classes = tuple(str(label) for label in range(int(max(labels.max(), held_labels.max())) + 1))
    check_split(str(path), labels, classes)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    return Dataset(name, _array_split(images, labels), _array_split(held_images, held_labels), classes, shape, maximum)


def held_out(labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which examples are for validation: evenly spaced in each class's order, `share` of them (0.2: 4, 9, 14, ...)."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = np.arange(len(members) + 1)
        whole = np.floor(count * share + 1e-9)
        held[members[whole[1:] > whole[:-1]]] = True
    return held


def check_split(source: str, labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    """Raises DataError when a class has no training image."""
    counts = np.bincount(labels, minlength=len(classes))
    empty = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if empty:
        raise DataError(f"{source}: no training image of class {', '.join(empty)}")


def _npz_part(
    path: Path, arrays: dict[str, NDArray[Any]], images_key: str, labels_key: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    for key in (images_key, labels_key):
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (the file has {', '.join(sorted(arrays)) or 'none'})")
    images, labels = arrays[images_key], arrays[labels_key]
    if images.dtype != np.uint8:
        raise DataError(f"{path}: {images_key} has dtype {images.dtype}, expected uint8")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise DataError(f"{path}: {images_key} has shape {images.shape}, expected (images, height, width[, channels])")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{path}: {labels_key} has dtype {labels.dtype}, expected integers")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{path}: {labels_key} has shape {labels.shape} for {len(images)} images")
    if labels.min() < 0:
        raise DataError(f"{path}: {labels_key} has the label {labels.min()}, expected 0 or more")
    return images, labels.astype(np.int64)


def _array_split(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    return Split(lambda indices: images[indices], labels)
