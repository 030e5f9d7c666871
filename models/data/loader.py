"""Batches: which images a step sees, made ready on a background thread.

Order: the training images are shuffled anew in each epoch by a permutation that depends on the seed and the epoch only.
The batches are consecutive pieces of the epochs laid end to end, so each image is seen once per epoch and no image is
left out at an epoch's end. Step `n` therefore starts at position `n * batch`, which is all that a resumed run needs.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from moespec.models.data.augment import crop_and_flip, mixup, one_hot
from moespec.models.data.dataset import Dataset, Split
from moespec.models.data.options import DataConfig
from moespec.models.streams import ORDER, generator

__all__ = ["Prefetcher", "batch_indices", "data_position", "evaluation_batch", "training_batch"]

Item = TypeVar("Item")


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


def training_batch(dataset: Dataset, config: DataConfig, *, batch: int, seed: int, step: int) -> dict[str, Any]:
    """Step `step`'s images `(batch, H, W, Ch)` in [-1, 1] and targets `(batch, classes)`, augmented."""
    indices = batch_indices(len(dataset.train), batch, seed, step)
    pixels = crop_and_flip(
        dataset.train.read(indices), padding=config.crop_padding, flip=config.flip, seed=seed, step=step
    )
    images = dataset.normalize(pixels)
    targets = one_hot(dataset.train.labels[indices], len(dataset.classes))
    if config.mixup:
        images, targets = mixup(images, targets, alpha=config.mixup, seed=seed, step=step)
    return {"images": images, "targets": targets}


def evaluation_batch(dataset: Dataset, split: Split, *, batch: int, index: int) -> dict[str, Any]:
    """Batch `index` of a split in order, "images" and "targets"; only the first "count" of them are to be counted.

    All batches have one size: the last is filled up with images from the start, so that a routing group stays real.
    """
    start = index * batch
    indices = np.arange(start, start + batch) % len(split)
    return {
        "images": dataset.normalize(split.read(indices)),
        "targets": one_hot(split.labels[indices], len(dataset.classes)),
        "count": min(batch, len(split) - start),
    }


@lru_cache(maxsize=2)
def _epoch_order(examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return generator(seed, ORDER, epoch).permutation(examples)


class Prefetcher(Generic[Item]):
    """Runs `make(step)` for the steps from `start` to `stop` on a background thread, `ahead` results in advance.

    Use as a context manager and iterate: it yields `(step, result)` in order. An exception of `make` is raised in the
    iterating thread at its place in the order; leaving the context ends the thread.
    """

    def __init__(self, make: Callable[[int], Item], start: int, stop: int, *, ahead: int) -> None:
        self._make, self._steps = make, range(start, stop)
        self._ready: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="moespec-prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        while self._thread.is_alive():  # the worker may wait for room in the queue
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        for _ in self._steps:
            step, item, error = self._ready.get()
            if error is not None:
                raise error
            yield step, item

    def _work(self) -> None:
        for step in self._steps:
            try:
                entry: tuple[int, Any, BaseException | None] = (step, self._make(step), None)
            except BaseException as error:  # whatever it is, the training thread raises it
                entry = (step, None, error)
            while not self._closed.is_set():
                try:
                    self._ready.put(entry, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._closed.is_set() or entry[2] is not None:
                return
