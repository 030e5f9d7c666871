"""Predictions for single validation images: which classes are confused, and which mistakes are surest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.spec.numerics import sigmoid, softmax
from moespec.training.data.dataset import Dataset
from moespec.training.evaluation.evaluate import features

__all__ = ["Predictions", "chosen", "confused", "confusion", "predictions"]

MOST = 2000
"""Most images that are predicted."""


class Predictions(NamedTuple):
    """Of each image: its number in the split, its label, the class of its largest logit, and its probability."""

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    read: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def worst(self, most: int) -> list[int]:
        """Places of at most `most` images that are read as another class, the most probable first."""
        order = np.argsort(-self.probabilities, kind="stable")
        return [int(place) for place in order[(self.read != self.labels)[order]][:most]]


def chosen(images: int) -> NDArray[np.int64]:
    """The numbers of the images, evenly spaced if there are more than `MOST`."""
    return np.linspace(0, images - 1, min(images, MOST)).round().astype(np.int64)


def predictions(
    B: Backend, forward: Callable[[Any, Any], tuple[Any, Any]], params: Any, dataset: Dataset, *, batch: int, kind: str
) -> Predictions:
    """Of the `chosen` validation images. `forward` is `make_forward`'s, `params` are arrays of `B`, `kind` is that of the loss."""
    split = dataset.validation
    indices = chosen(len(split))
    part = replace(split, read=lambda rows: split.read(indices[rows]), labels=split.labels[indices])
    seen = features(B, lambda *inputs: forward(*inputs)[0], params, dataset, part, batch=batch)
    logits = np.asarray(seen, np.float64)
    likely = {"softmax": softmax, "sigmoid": sigmoid}[kind](logits)
    read = logits.argmax(axis=1)
    return Predictions(indices, part.labels, read, likely[np.arange(len(read)), read])


def confusion(made: Predictions, classes: int) -> NDArray[np.int64]:
    """How many images of class i are read as class j, `(classes, classes)`."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (made.labels, made.read), 1)
    return counts


def confused(counts: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """The most frequent mistakes, at most `most`: (label, read as)."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[: min(most, int(np.count_nonzero(wrong)))]
    return [(int(place) // len(counts), int(place) % len(counts)) for place in order]
