"""Loads data sets by name: `load(name, path, ...)` returns a `Dataset`, from the built-in digits or from the user's files."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.checks import called
from moespec.models.errors import DataError
from moespec.models.memory import check_memory, cores
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own, own_function, shown
from moespec.training.data.cifar import KINDS, load_cifar
from moespec.training.data.dataset import Dataset, Split, read_names
from moespec.training.data.folder import find_folder
from moespec.training.data.found import HELD, directories
from moespec.training.data.hub import find_hub
from moespec.training.data.idx import load_idx
from moespec.training.data.npz import load_npz
from moespec.training.data.options import DataConfig, numbers
from moespec.training.data.pairs import find_pairs
from moespec.training.data.pictures import middle
from moespec.training.data.picturesets import First, load_pictures
from moespec.training.data.shards import find_shards
from moespec.training.data.transforms import check_changes

__all__ = ["DATASETS", "PICTURES", "First", "check_share", "load", "load_configured", "load_others"]

DATASETS = {
    "digits": "1 797 handwritten digits of 8 x 8 pixels, in the package",
    "npz": "a NumPy .npz file: train_images, train_labels, val_images, val_labels, as in MedMNIST; or images, labels",
    "idx": "a folder with the four IDX files of MNIST or Fashion-MNIST, .gz or not",
    "cifar10": "a folder with the binary files of CIFAR-10: data_batch_1.bin to data_batch_5.bin, test_batch.bin",
    "cifar100": "a folder with the binary files of CIFAR-100: train.bin, test.bin; classes are the fine labels",
    "folder": "one folder of images per class, optionally under train/ and val/; or images with a table of labels, labels.csv",
    "webdataset": "a folder of tar files with members such as cat12.jpg and cat12.cls, or one tar file",
    "pairs": "images with captions: a folder with a.txt beside a.jpg, a .csv or .jsonl file, tar files, or a Hugging Face datasets folder",
    "huggingface": "a local folder that the datasets library loads: parquet, an image folder, save_to_disk",
}
SIZES = {
    "idx": {"image_size": 28, "channels": 1, "classes": 10},
    **{name: {"image_size": 32, "channels": 3, "classes": kind.labels[-1]} for name, kind in KINDS.items()},
}
"""Image size, number of channels and number of classes of the data sets for which the name determines these values."""
PICTURES = {"folder": find_folder, "webdataset": find_shards, "huggingface": find_hub, "pairs": find_pairs}
"""Names of data sets with pictures of any size, and the function that finds the classes and files of each data set."""
DIGITS = Path(__file__).parent / "digits.npz"


def load(name: str, path: str = "", *, image_size: int | None = None, **fields: Any) -> Dataset:
    """Reads the data set `name` from `path`, with the other `fields` of `DataConfig`; see `load_configured`."""
    return load_configured(DataConfig(**{"name": name, "path": path, **fields}), image_size=image_size)


def load_others(config: DataConfig, own: Dataset, *, name: str | None, path: str, broken: Any) -> Dataset:
    """Returns `own`, the data set of `config`, with the images of another data set as the validation split. If the other data set has a
    validation split, only that split is used. Images are prepared like the images of `own`. Classes are matched by name and may be a
    subset of the classes of `own`. Raises ConfigError for the run's own data, and DataError if classes or images do not fit `own`.
    """
    name = name or config.name
    if (name, Path(path).resolve()) == (config.name, Path(config.path).resolve()):
        raise ConfigError(f"data.path={path!r} is the run's own data; omit --data to use its validation images")
    if "pairs" in (name, config.name):
        raise ConfigError(f"data.path={path!r}: expected a data set with classes, but pairs have no classes")
    fields = ("mean", "std", "resize", "background") if name in PICTURES else ("mean", "std", "classes")
    options: Any = {"name": name, "path": path, "broken": broken, **{field: getattr(config, field) for field in fields}}
    others = load_configured(DataConfig(**options), image_size=own.shape[0], whole=True)
    names = [others.classes[label] for label in others.validation.labels]
    if unknown := set(names) - set(own.classes):
        raise DataError(f"{path or name}: class {min(unknown)!r} is not in the run's classes {', '.join(own.classes)}")
    if (others.shape, others.maximum) != (own.shape, own.maximum):
        shown = (f"shape {one.shape} with white at {one.maximum}" for one in (others, own))
        raise DataError(f"{path or name}: the images have {', but in the run they have '.join(shown)}")
    labels = np.array([own.classes.index(name) for name in names])
    return replace(own, name=others.name, validation=replace(others.validation, labels=labels), notes=others.notes)


def load_configured(
    config: DataConfig, *, image_size: int | None = None, whole: bool = False, first: First | None = None
) -> Dataset:
    """Reads the data set of a configuration.

    image_size: the side in pixels of images after resizing and cropping to a square; None leaves arrays unchanged.
    whole: whether both splits contain all images if there is no validation split. first: see `load_pictures`.

    Raises ConfigError for a field or size that does not fit the images, and DataError for unusable files.
    """
    name, share = config.name, config.validation_share
    if name not in DATASETS and not is_own(name):
        raise ConfigError(f"data.name={name!r}: expected one of {', '.join(DATASETS)}, or package.module:function")
    if not 0 < share < 1:
        raise ConfigError(f"data.validation_share={share!r}: expected a scalar between 0 and 1")
    if name == "digits" and config.path:
        raise ConfigError(f"data.path={config.path!r}: the data set 'digits' is part of the package; omit data.path")
    if name in DATASETS and name != "digits" and not config.path:
        raise ConfigError(f"data.path is not set: the data set {name!r} needs a path ({DATASETS[name]})")
    for field in ("resize", "background", "broken") if name in DATASETS and name not in PICTURES else ():
        if (value := getattr(config, field)) != getattr(DataConfig(), field):
            raise ConfigError(f"data.{field}={value!r}: the data set {name!r} has no image files to decode")
    path = Path(config.path)
    if name in PICTURES:
        if image_size is None:
            raise ConfigError("model.image_size is not set; set it to the side of the resized images in pixels")
        if 0 < config.resize < image_size:
            raise ConfigError(f"data.resize={config.resize!r}: expected at least model.image_size={image_size}")
        only = directories(path) if whole and name == "folder" and path.is_dir() else []
        classes, part, held = PICTURES[name](path / only[0] if len(only) == 1 and only[0] in HELD else path)
        held = held or (part if whole else None)
        dataset = load_pictures(path, classes, part, held, size=image_size, config=config, first=first)
    elif is_own(name):
        dataset = _resized(_own(config, image_size), image_size)
    elif name == "idx":
        dataset = _resized(load_idx(path), image_size)
    elif name in KINDS:
        dataset = _resized(load_cifar(path, name), image_size)
    else:
        file, title = (DIGITS, "digits") if name == "digits" else (path, path.stem)
        dataset = _resized(load_npz(file, name=title, validation_share=1 if whole else share), image_size)
    if config.workers > cores():
        note = f"data.workers={config.workers}: using {cores()}, the number of cores available to this process"
        dataset = replace(dataset, notes=(*dataset.notes, note))
    mean, std = numbers("data.mean", config.mean), numbers("data.std", config.std)
    for field, text, values in (("mean", config.mean, mean), ("std", config.std, std)):
        if len(values) not in (1, dataset.shape[2]):
            raise ConfigError(f"data.{field}={text!r}: {len(values)} numbers do not fit {dataset.shape[2]} channels")
    dataset = replace(dataset, mean=mean, std=std)
    if config.classes:
        names = read_names(Path(config.classes), f"data.classes={config.classes!r}")
        if len(names) != len(dataset.classes):
            raise ConfigError(f"data.classes={config.classes!r}: {len(names)} names, expected {len(dataset.classes)}")
        dataset = replace(dataset, classes=names)
    check_changes(dataset, config)
    return dataset


def _own(config: DataConfig, image_size: int | None) -> Dataset:
    """Returns the result of the user's function for this configuration. Raises ConfigError if the result is not a usable data set."""
    what = f"data.name={config.name!r}"
    dataset = called(what, own_function("data.name", config.name), config, image_size)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"{what}: returned {type(dataset).__name__}, expected moespec.training.data.dataset.Dataset")
    if len({*map(type, dataset.classes), str}) > 1 or len({*dataset.classes}) < len(dataset.classes):
        raise ConfigError(f"{what}: classes={shown(dataset.classes)}: expected distinct names")
    for part, split in (("training", dataset.train), ("validation", dataset.validation)):
        labels, classes = split.labels, len(dataset.classes)
        outside = set(np.unique(labels).tolist()).difference(range(classes)) if split.captions is None else ()
        image = np.asarray(called(f"{what}, {part} image 0", split.read, np.zeros(1, np.int64)))
        found, wanted = f"{image.dtype} {image.shape}", f"uint8 {(1, *dataset.shape)}"
        if outside or np.ndim(labels) != 1 or not np.size(labels) or found != wanted:
            parts = f"labels have shape {np.shape(labels)}, invalid values {sorted(outside)[:3]}, image 0 is {found}"
            raise ConfigError(f"{what}: {part} {parts}; expected (images,) integers below {classes} and {wanted}")
    return dataset


def check_share(config: DataConfig, dataset: Dataset) -> None:
    """Raises ConfigError if the configuration sets `validation_share` but the data have a validation split."""
    share = config.validation_share
    if share != DataConfig().validation_share and not dataset.held_out:
        raise ConfigError(
            f"data.validation_share={share!r} has no effect here: the data set has its own validation split"
        )


def _resized(dataset: Dataset, size: int | None) -> Dataset:
    """Returns the data set with images `(size, size, channels)`: the shorter side is resized (bicubic), then the middle square is cropped.

    Images are resized when read. Random crops are taken from the original image.
    """
    height, width, channels = dataset.shape
    if size is None or height == width == size:
        return dataset
    if size < 1:
        raise ConfigError(f"model.image_size={size!r}: expected an integer >= 1")
    check_memory(f"model.image_size={size!r}", size * size * channels)
    if channels not in (1, 3):
        what = f"the data set {dataset.name!r} has {height} x {width} pixels and {channels} channels"
        raise ConfigError(f"model.image_size={size!r}: {what}; only images with 1 or 3 channels can be resized")
    note = f"images of {height} x {width} pixels are resized to {size} x {size}"
    small = dataset.with_splits(
        lambda _, part: Split(partial(_read, part, size, dataset.maximum), part.labels, part.picture)
    )
    return replace(small, shape=(size, size, channels), notes=(*dataset.notes, note))


def _read(part: Split, size: int, maximum: int, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns images `(images, size, size, channels)`. Values above white, which bicubic resizing can produce, are clipped to white."""
    squares = np.stack([middle(part.picture(int(index)), size, 0) for index in indices])
    return np.minimum(squares, np.uint8(maximum)).reshape(*squares.shape[:3], -1)
