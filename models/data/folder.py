"""A data set from a folder of images: one folder per class, by itself or under `train/` and `val/`.

    photos/cat/1.jpg                    photos/train/cat/1.jpg
    photos/dog/2.png          or        photos/val/cat/7.jpg

The header of every image is read at the start. Images are decoded when they are needed, off the training thread: the
shorter side is resized to `image_size` and the middle square is cut out. They have three channels, and are what they look
like (`moespec.models.data.pictures`).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from moespec.models.data.dataset import Dataset, Split, held_out
from moespec.models.data.pictures import check_header, read_image
from moespec.models.errors import DataError

__all__ = ["load_folder"]

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def load_folder(folder: Path, *, image_size: int, validation_share: float) -> Dataset:
    """The images under `folder`, in the order of class and file names.

    Without `train/` and `val/`, `held_out` says which images are held out. Raises DataError for a folder that is not
    there, has no class, or has a class without images (naming it), and for a file that is not an image by its header; one
    that is broken further down raises when it is read.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if (folder / "train").is_dir():
        if not (folder / "val").is_dir():
            raise DataError(f"{folder / 'val'}: there is no such folder next to train/")
        classes, files, labels = _scan(folder / "train")
        held_classes, held_files, held_labels = _scan(folder / "val")
        if held_classes != classes:
            raise DataError(f"{folder / 'val'}: classes {held_classes}, but train/ has {classes}")
    else:
        classes, everything, everylabel = _scan(folder)
        held = held_out(everylabel, validation_share)
        files, labels = [f for f, h in zip(everything, held, strict=True) if not h], everylabel[~held]
        held_files, held_labels = [f for f, h in zip(everything, held, strict=True) if h], everylabel[held]
        if not held_files:
            raise DataError(f"{folder}: no class has enough images to hold out {validation_share:g} of them")
        if len(np.unique(labels)) < len(classes):
            raise DataError(f"{folder}: a class has no image left when {validation_share:g} of them are held out")
    train, validation = _split(files, labels, image_size), _split(held_files, held_labels, image_size)
    return Dataset(folder.name, train, validation, classes, (image_size, image_size, 3), 255)


def _scan(folder: Path) -> tuple[tuple[str, ...], list[Path], NDArray[np.int64]]:
    directories = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not directories:
        raise DataError(f"{folder}: no folders of classes in it")
    files: list[Path] = []
    labels: list[int] = []
    for label, directory in enumerate(directories):
        found = sorted(file for file in directory.iterdir() if file.suffix.lower() in ENDINGS)
        if not found:
            raise DataError(f"{directory}: the class has no images (endings {', '.join(sorted(ENDINGS))})")
        files += found
        labels += [label] * len(found)
    for file in tqdm(files, unit="image", desc="headers", disable=None):
        check_header(file)
    return tuple(directory.name for directory in directories), files, np.asarray(labels, np.int64)


def _split(files: list[Path], labels: NDArray[np.int64], size: int) -> Split:
    return Split(lambda indices: np.stack([read_image(files[index], size) for index in indices]), labels)
