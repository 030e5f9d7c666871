"""Reads a data set from a NumPy `.npz` file of plain arrays."""

import math
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.models.files import regular
from moespec.models.memory import check_unpacked
from moespec.training.data.dataset import Dataset, array_split, held_out, numbered_classes
from moespec.training.data.found import LeftOut, validation_name

__all__ = ["load_npz", "read_arrays"]


def load_npz(path: Path, *, name: str, validation_share: float) -> Dataset:
    """Reads a data set from a NumPy file of uint8 images `(N, H, W)` or `(N, H, W, channels)` and integer labels `(N,)` or `(N, 1)`.

    The file has the arrays `train_images`, `train_labels`, `validation_images` and `validation_labels` (or `val_*`, `valid_*`).
    If the file has `images` and `labels` instead, `held_out` splits them; with `validation_share` 1, both splits contain all images. The
    optional array `maximum` is the value of white, by default 255. Nothing is unpickled. Raises DataError for an unusable file.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    arrays, held_name, notes = _read(path)
    maximum = _maximum(path, arrays)
    if "train_images" in arrays:
        parts = [_npz_part(path, arrays, f"{part}_images", f"{part}_labels") for part in ("train", held_name)]
    else:
        images, labels = _npz_part(path, arrays, "images", "labels")
        held = held_out(labels, validation_share)
        trained = ~held if validation_share < 1 else held
        if not (trained.any() and held.any()):
            raise DataError(f"{path}: too few images ({len(images)}) to hold out {validation_share:g} of each class")
        parts = [(images[trained], labels[trained]), (images[held], labels[held])]
    (images, labels), (held_images, held_labels) = parts
    if held_images.shape[1:] != images.shape[1:]:
        raise DataError(f"{path}: train_images has shape {images.shape}, {held_name}_images {held_images.shape}")
    brightest = max(images.max(), held_images.max())
    if brightest > maximum:
        raise DataError(f"{path}: maximum={maximum}, but pixels reach {brightest}")
    classes = numbered_classes(str(path), labels, held_labels)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    splits = array_split(images, labels), array_split(held_images, held_labels)
    return Dataset(name, *splits, classes, shape, maximum, notes=notes, held_out="train_images" not in arrays)


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], str, tuple[str, ...]]:
    """Returns the arrays of one or two splits, the name of the validation split, and a note on other arrays."""
    left, held = LeftOut(), "validation"

    def choose(names: Collection[str]) -> Collection[str]:
        nonlocal held
        held = validation_name([name[:-7] for name in names if name.endswith("_images")], path) or held
        parts = ("train_", f"{held}_") if "train_images" in names else ("",)
        keys = {"maximum", *(f"{part}{kind}" for part in parts for kind in ("images", "labels"))}
        for name in sorted(set(names) - keys):
            left.add("arrays", name)
        return keys

    try:
        return read_arrays(path, choose), held, left.notes(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a readable .npz file of plain arrays ({error})") from error


def read_arrays(
    path: Path, choose: Callable[[Collection[str]], Collection[str]] = lambda names: names
) -> dict[str, NDArray[Any]]:
    """Returns the arrays that `choose` selects by name from an npz file, by default all arrays. Never unpickles.

    Raises OSError for a file that cannot be opened, and ValueError, naming the array, for a damaged array.
    """
    arrays, place = {}, ""
    with open(path, "rb", opener=regular) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                chosen = choose(members.keys())
                check_unpacked(info for name, info in members.items() if name in chosen)
                for name, info in members.items():
                    if name not in chosen:
                        continue
                    place = f"{name!r}: "
                    with archive.open(info) as content:
                        if _size(cast(BinaryIO, content)) > info.file_size:  # checked before the array is allocated
                            raise ValueError("has fewer bytes than its header declares")
                    with archive.open(info) as content:
                        arrays[name] = npy.read_array(cast(BinaryIO, content), allow_pickle=False)
                        if content.read(1):  # reading to the end also verifies the checksum
                            raise ValueError("has more bytes than its header declares")
        except DataError:
            raise
        except Exception as error:  # damaged files raise many exception types
            raise ValueError(f"{place}{error}") from error
    return arrays


def _size(content: BinaryIO) -> int:
    """Returns the size of an array in bytes, from its header."""
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = headers[npy.read_magic(content)](content)
    return math.prod(shape) * dtype.itemsize


def _maximum(path: Path, arrays: dict[str, NDArray[Any]]) -> int:
    """Returns the value of white: an integer from 1 to 255, stored in a one-element array."""
    maximum = arrays.get("maximum", np.array(255))
    if maximum.size != 1 or maximum.dtype.kind not in "iuf" or not 1 <= maximum.item() <= 255 or maximum.item() % 1:
        shown = maximum.item() if maximum.size == 1 else f"an array of shape {maximum.shape}"
        raise DataError(f"{path}: maximum={shown!r}: expected an integer from 1 to 255")
    return int(maximum.item())


def _npz_part(
    path: Path, arrays: dict[str, NDArray[Any]], images_key: str, labels_key: str
) -> tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]:
    for key in (images_key, labels_key):
        if key not in arrays:
            raise DataError(f"{path}: expected an array {key!r}, got {', '.join(sorted(arrays)) or 'none'}")
    images, labels = arrays[images_key], arrays[labels_key]
    if images.dtype != np.uint8:
        raise DataError(f"{path}: {images_key} has dtype {images.dtype}, expected uint8")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise DataError(f"{path}: {images_key} has shape {images.shape}, expected (images, height, width[, channels])")
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path}: {labels_key} has dtype {labels.dtype}, expected integers")
    if labels.shape not in (images.shape[:1], (len(images), 1)):
        raise DataError(f"{path}: {labels_key} has shape {labels.shape}, expected one for each of {len(images)} images")
    labels = labels.reshape(len(images))
    if labels.min() < 0:
        raise DataError(f"{path}: {labels_key} has label {labels.min()}, expected 0 or more")
    return images, labels
