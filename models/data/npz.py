"""A data set from a NumPy `.npz` file of plain arrays."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.dataset import Dataset, Split, check_split, held_out
from moespec.models.errors import DataError

__all__ = ["load_npz"]


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
