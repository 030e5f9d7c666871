"""Batches: which images a step sees, and what is done to them: on the host, and on the device, where they arrive as uint8.

Each epoch has its own permutation of the training images, which depends on seed and epoch alone. Batches are consecutive parts of
the epochs laid end to end, so that no image is left out at an epoch's end, and step `n` starts at position `n * batch`.

With `data.balance` an epoch has as many images as before, but other numbers of each class, which goes through permutations of its
own, one after the other, so that all of its images are drawn equally often, give or take one.
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
"""Distance of the random numbers of two views of an image; more than the steps, or images, of a run."""


def batch_indices(examples: int, batch: int, seed: int, step: int, part: int = 0) -> NDArray[np.int64]:
    """The indices of the images of step `step` (from 0), `(batch,)`. Each `part` has its own permutations."""
    positions = np.arange(step * batch, (step + 1) * batch)
    pieces = [
        _epoch_order(examples, seed, int(epoch), part)[positions[positions // examples == epoch] % examples]
        for epoch in np.unique(positions // examples)
    ]
    return np.concatenate(pieces)


def training_indices(split: Split, balance: float, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """`batch_indices` with classes balanced."""
    places = batch_indices(len(split), batch, seed, step)
    if not balance:
        return places
    epochs = np.arange(step * batch, (step + 1) * batch) // len(split)
    each = [_balanced(split, balance, seed, epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
    return np.concatenate(each)


def data_position(examples: int, batch: int, step: int) -> dict[str, int]:
    """The epoch after `step` steps, and how many of its images have been seen."""
    epoch, offset = divmod(step * batch, examples)
    return {"epoch": epoch, "offset": offset}


def training_batch(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None, view: int = 0
) -> dict[str, Any]:
    """Step `step`'s images `(batch, H, W, Ch)`, uint8, and targets `(batch, classes)`, augmented.

    In this order: crop, move and mirror; colours, RandAugment, the user's transform, erasing; cutmix or mixup. Targets are
    mixed here, images with the weight "mixup" on the device (`prepared`). Without classes there are no targets.

    rows: only these of the batch, with the images before each as "neighbours" for mixup. view: draws another view.
    """
    mixes = bool(config.mixup or config.cutmix)
    # The first of `rows` has its neighbour before it, which is dropped when all are mixed.
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
    """Several views of the images of a step by name, each `{"images"}` of a `training_batch` with its own augmentation."""
    return {
        name: {"images": training_batch(dataset, config, batch, seed, step, rows=rows, view=view)["images"]}
        for view, (name, config) in enumerate(views.items())
    }


def pairs_of_step(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None
) -> dict[str, Any]:
    """The pairs of a step: `{"image": {"images"}}`, or `{"features"}` if they are known, and `{"text": {"ids"}}`."""
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
    """Batch `index` of a split in order, "images" (uint8) and "targets", of which only the first "count" count.

    The last batch is filled up with images from the start of the split. rows: only these images.
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
    """The images of an epoch, class by class. It has so many of a class of n images, at least one:

    n^(1 - balance), scaled to the sum of all n and rounded by largest remainders
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
    """Pixels `(N, H, W, Ch)`, uint8 arrays of `B`, as what the model sees: mixed, if there is a `weight`, and normalised.

    factor (weight x_i + (1 - weight) x_(i-1)) - offset         with the scale of the data set

    neighbours: the x_(i-1), where `pixels` are not a whole batch.
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

    # With torch four operations are soon done, and to compile them takes seconds.
    return run if backend == "torch" else B.compile(run)
