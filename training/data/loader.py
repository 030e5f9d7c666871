"""Makes batches: chooses the images of a step, processes them on the host, transfers them as uint8 and processes them on the device.

Each epoch has its own permutation of the training images, which depends only on seed and epoch. Batches are consecutive slices of
the concatenated epochs, so no image is dropped at the end of an epoch, and step `n` starts at position `n * batch`.

`data.balance` changes the number of images of each class in an epoch, but not the total. The images of a class are drawn in successive
permutations, so the numbers of draws of two images of a class differ by at most one.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.training.data.augment import by_turns, crop_and_flip, cutmix, mixed, mixup_weight, one_hot
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.options import DataConfig
from moespec.training.data.transforms import cut_out, with_changes
from moespec.training.rng import ORDER, generator

__all__ = [
    *("batch_indices", "data_position", "evaluation_batch", "pairs_of_step", "prepared", "training_batch"),
    *("training_indices", "views_of_step"),
]

Array = Any
Scale = tuple[tuple[float, ...], tuple[float, ...]]
VIEW = 2**48
"""Offset that separates the random numbers of the views of an image; larger than the number of steps or images of any run."""


def batch_indices(examples: int, batch: int, seed: int, step: int, part: int = 0) -> NDArray[np.int64]:
    """Returns the indices of the images of step `step` (from 0), `(batch,)`. Different values of `part` give different permutations."""
    positions = np.arange(step * batch, (step + 1) * batch)
    pieces = [
        _epoch_order(examples, seed, int(epoch), part)[positions[positions // examples == epoch] % examples]
        for epoch in np.unique(positions // examples)
    ]
    return np.concatenate(pieces)


def training_indices(split: Split, balance: float, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """Returns indices like `batch_indices`, with classes balanced as `balance` requires."""
    places = batch_indices(len(split), batch, seed, step)
    if not balance:
        return places
    epochs = np.arange(step * batch, (step + 1) * batch) // len(split)
    each = [_balanced(split, balance, seed, epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
    return np.concatenate(each)


def data_position(examples: int, batch: int, step: int) -> dict[str, int]:
    """Returns the number of complete epochs after `step` steps, and the number of images used in the current epoch."""
    epoch, offset = divmod(step * batch, examples)
    return {"epoch": epoch, "offset": offset}


def training_batch(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None, view: int = 0
) -> dict[str, Any]:
    """Returns the augmented images `(batch, H, W, Ch)`, uint8, and targets `(batch, classes)` of step `step`.

    Order of augmentations: crop, shift and flip; colours, RandAugment, the user's transform, erasing; cutmix or mixup. For mixup,
    this function mixes the targets, and `prepared` later mixes the images with the weight "mixup". Without classes, there are no targets.

    rows: the rows of the batch to return. For mixup, "neighbours" holds the image before each of these rows. view: the index of the view.
    """
    mixes = bool(config.mixup or config.cutmix)
    # The neighbour of the first row is placed before this row and dropped after mixing.
    places = np.arange(batch) if rows is None else np.arange(rows.start - mixes, rows.stop) % batch
    indices = training_indices(dataset.train, config.balance, batch, seed, step)[places]
    positions = step * batch + places + view * VIEW
    pixels = cut_out(dataset, config, indices, seed=seed, positions=positions)
    moved: Any = {"padding": config.crop_padding, "flip": config.flip, "batch": batch, "places": places}
    pixels = crop_and_flip(pixels, seed=seed, step=step + view * VIEW, **moved)
    pixels = with_changes(pixels, config, maximum=dataset.maximum, seed=seed, positions=positions, indices=indices)
    rows_of_batch = slice(int(mixes and rows is not None), None)
    if not dataset.classes:
        return {"images": pixels[rows_of_batch]}
    targets = one_hot(dataset.train.labels[indices], len(dataset.classes), smoothing=config.label_smoothing)
    if config.cutmix and (not config.mixup or by_turns(seed=seed, step=step)):
        pixels, targets = cutmix(pixels, targets, alpha=config.cutmix, seed=seed, step=step)
    elif config.mixup:
        weight = mixup_weight(alpha=config.mixup, seed=seed, step=step)
        batch_of = {"images": pixels[rows_of_batch], "targets": mixed(targets, weight)[rows_of_batch], "mixup": weight}
        return batch_of if rows is None else {**batch_of, "neighbours": pixels[:-1]}
    return {"images": pixels[rows_of_batch], "targets": targets[rows_of_batch]}


def views_of_step(
    dataset: Dataset, views: Mapping[str, DataConfig], batch: int, seed: int, step: int, *, rows: range | None = None
) -> dict[str, Any]:
    """Returns the views of a step's images by view name. Each view is `{"images"}`, augmented with its own configuration."""
    return {
        name: {"images": training_batch(dataset, config, batch, seed, step, rows=rows, view=view)["images"]}
        for view, (name, config) in enumerate(views.items())
    }


def pairs_of_step(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None
) -> dict[str, Any]:
    """Returns the pairs of a step: `{"image": {"images"}}`, or `{"features"}` if precomputed, and `{"text": {"ids"}}`."""
    indices = batch_indices(len(dataset.train), batch, seed, step)
    chosen = indices if rows is None else indices[rows.start : rows.stop]
    ids, features = dataset.train.ids, dataset.train.features
    text = {} if ids is None else {"ids": ids[chosen]}
    if features is not None:
        return {"image": {"features": features[chosen]}, "text": text}
    return {"image": training_batch(dataset, config, batch, seed, step, rows=rows), "text": text}


def evaluation_batch(
    dataset: Dataset, split: Split, *, batch: int, index: int, rows: range | None = None
) -> dict[str, Any]:
    """Returns batch `index` of a split in order: "images" (uint8) and "targets". Only the first "count" rows are valid.

    The last batch is padded with images from the start of the split. rows: returns only these rows of the images, but all targets.
    """
    start = index * batch
    indices = np.arange(start, start + batch) % len(split)
    targets = {"targets": one_hot(split.labels[indices], len(dataset.classes))} if dataset.classes else {}
    images = split.read(indices if rows is None else indices[rows.start : rows.stop])
    return {"images": images, **targets, "count": min(batch, len(split) - start)}


@lru_cache(maxsize=2)
def _epoch_order(examples: int, seed: int, epoch: int, part: int) -> NDArray[np.int64]:
    return generator(seed, ORDER, epoch, part).permutation(examples)


@lru_cache(maxsize=2)
def _balanced(split: Split, balance: float, seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns the images of an epoch, class by class. From a class of n >= 1 images, the number of images drawn is

    n^(1 - balance), scaled to the sum of all n and rounded by the largest-remainder method
    """
    counts = np.bincount(split.labels)
    weights = np.where(counts > 0, np.maximum(counts, 1) ** (1.0 - balance), 0.0)
    exact = weights * (len(split) / weights.sum())
    draws = np.floor(exact).astype(np.int64)
    draws[np.argsort(draws - exact, kind="stable")[: len(split) - draws.sum()]] += 1
    members = np.split(np.argsort(split.labels, kind="stable"), np.cumsum(counts)[:-1])
    each = enumerate(zip(members, draws.tolist(), strict=True), 1)
    return np.concatenate([own[batch_indices(len(own), n, seed, epoch, part)] for part, (own, n) in each if n])


def prepared(
    B: Backend, dataset: Dataset, pixels: Array, weight: Array | None = None, neighbours: Array | None = None
) -> Array:
    """Converts pixels `(N, H, W, Ch)`, uint8 arrays of `B`, to the model's input: mixes images if `weight` is set, and normalises.

    factor (weight x_i + (1 - weight) x_(i-1)) - offset         with the scale of the data set

    neighbours: the images x_(i-1), needed if `pixels` is only a part of the batch.
    """
    images: Array = _function(B.name, dataset.scale)(pixels, weight, neighbours)
    return images


@cache
def _function(backend: str, scale: Scale) -> Callable[[Array, Array | None, Array | None], Array]:
    B: Backend = import_module(f"moespec.backends.{backend}")

    def run(x: Array, weight: Array | None, neighbours: Array | None) -> Array:
        factor, offset = B.from_numpy([np.asarray(values, np.float32) for values in scale])
        if weight is not None:
            before = B.concatenate([x[-1:], x[:-1]], 0) if neighbours is None else neighbours
            x = weight * x + (1 - weight) * before
        return factor * x - offset

    # torch is fast without compilation for these four operations, and compilation would take seconds.
    return run if backend == "torch" else B.compile(run)
