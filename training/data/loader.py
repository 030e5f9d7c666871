"""Batches: which images a step sees, and what is done to them.

Order: the training images are shuffled anew in each epoch by a permutation that depends on the seed and the epoch only.
The batches are consecutive pieces of the epochs laid end to end, so each image is seen once per epoch and no image is
left out at an epoch's end. Step `n` therefore starts at position `n * batch`, which is all that a resumed run needs.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.training.data.augment import by_turns, crop_and_flip, cutmix, mixed, mixup_weight, one_hot
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.options import DataConfig
from moespec.training.data.transforms import cut_out, with_changes
from moespec.training.rng import ORDER, generator

__all__ = ["batch_indices", "data_position", "evaluation_batch", "pairs_of_step", "training_batch", "views_of_step"]

VIEW = 2**48
"""What tells the numbers that are drawn for one view of an image from those for the next; more than the steps, or images, of a run."""


def batch_indices(examples: int, batch: int, seed: int, step: int) -> NDArray[np.int64]:
    """The indices of the images of step `step` (from 0), `(batch,)`."""
    positions = np.arange(step * batch, (step + 1) * batch)
    pieces = [
        _epoch_order(examples, seed, int(epoch))[positions[positions // examples == epoch] % examples]
        for epoch in np.unique(positions // examples)
    ]
    return np.concatenate(pieces)


def data_position(examples: int, batch: int, step: int) -> dict[str, int]:
    """Where the data stand after `step` steps: the epoch and how many of its images have been seen."""
    epoch, offset = divmod(step * batch, examples)
    return {"epoch": epoch, "offset": offset}


def training_batch(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None, view: int = 0
) -> dict[str, Any]:
    """Step `step`'s images `(batch, H, W, Ch)`, uint8, and targets `(batch, classes)`, augmented.

    In this order: the part of the picture, moved and mirrored; colours, RandAugment, the user's transform, erasing; cutmix
    or mixup. Of mixup there is the weight, "mixup", with which the targets are mixed already and the images are on the
    device (`prepared`). rows: only these of the batch, the same as they are in the whole; then mixup's neighbours come along,
    "neighbours". Without classes there are no targets. view: another number draws another view of the same images.
    """
    mixes = bool(config.mixup or config.cutmix)
    # Of rows that are asked for the first has its neighbour before it, which is dropped when all are mixed.
    places = np.arange(batch) if rows is None else np.arange(rows.start - mixes, rows.stop) % batch
    indices = batch_indices(len(dataset.train), batch, seed, step)[places]
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
        made = {"images": pixels[rows_of_batch], "targets": mixed(targets, weight)[rows_of_batch], "mixup": weight}
        return made if rows is None else {**made, "neighbours": pixels[:-1]}
    return {"images": pixels[rows_of_batch], "targets": targets[rows_of_batch]}


def views_of_step(
    dataset: Dataset, views: Mapping[str, DataConfig], batch: int, seed: int, step: int, *, rows: range | None = None
) -> dict[str, Any]:
    """Several views of the images of a step by name, each `{"images"}` of a `training_batch` with its own augmentation."""
    made = {
        name: training_batch(dataset, config, batch, seed, step, rows=rows, view=view)
        for view, (name, config) in enumerate(views.items())
    }
    return {name: {"images": one["images"]} for name, one in made.items()}


def pairs_of_step(
    dataset: Dataset, config: DataConfig, batch: int, seed: int, step: int, *, rows: range | None = None
) -> dict[str, Any]:
    """The pairs of a step: `{"image": {"images"}}`, or `{"image": {"features"}}` where they are known, and `{"text": {"ids"}}`."""
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
    """Batch `index` of a split in order, "images" (uint8) and "targets"; only the first "count" of them are to be counted.

    All batches have one size: the last is filled up with images from the start, so that a routing group stays real.
    rows: of the images only these.
    """
    start = index * batch
    indices = np.arange(start, start + batch) % len(split)
    targets = {"targets": one_hot(split.labels[indices], len(dataset.classes))} if dataset.classes else {}
    images = split.read(indices if rows is None else indices[rows.start : rows.stop])
    return {"images": images, **targets, "count": min(batch, len(split) - start)}


@lru_cache(maxsize=2)
def _epoch_order(examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return generator(seed, ORDER, epoch).permutation(examples)
