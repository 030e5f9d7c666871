"""Results of each class, and what a model must beat: always answering the largest class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.shown import on_one_line
from moespec.training.data.dataset import Dataset

__all__ = ["always", "balanced_accuracy", "beside", "confused", "confusion", "recall_and_precision"]

Counts = NDArray[np.int64]


def always(dataset: Dataset) -> tuple[str, float]:
    """The most frequent class of the validation images, and its fraction of them: the accuracy of always answering it."""
    counts = np.bincount(dataset.validation.labels)
    return dataset.classes[counts.argmax()], float(counts.max() / counts.sum())


def beside(results: Mapping[str, Any], dataset: Dataset) -> str:
    """What is shown beside an accuracy on the validation images: the accuracy of always answering the largest class, and the
    balanced accuracy if it was measured. Nothing if the images have no classes."""
    if not dataset.classes:
        return ""
    name, fraction = always(dataset)
    balanced = f"; balanced accuracy {results['balanced_accuracy']:.4f}" if "balanced_accuracy" in results else ""
    return f"always {on_one_line(name)}: {fraction:.4f}{balanced}"


def balanced_accuracy(right: NDArray[Any], images: Counts) -> float:
    """mean of right[c] / images[c] over the classes c that have images

    right, images: how many images of each class are right, and how many there are, `(classes,)`.
    """
    return float(np.mean(right[images > 0] / images[images > 0]))


def confusion(labels: Counts, read: Counts, classes: int) -> Counts:
    """How many images of class i are read as class j, `(classes, classes)`."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, read), 1)
    return counts


def confused(counts: Counts, most: int) -> list[tuple[int, int]]:
    """The most frequent mistakes, at most `most`: (label, read as)."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[: min(most, int(np.count_nonzero(wrong)))]
    return [(int(place) // len(counts), int(place) % len(counts)) for place in order]


def recall_and_precision(counts: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each class c, NaN where there is nothing to count:

    recall[c]     counts[c, c] / images of class c
    precision[c]  counts[c, c] / images that are read as class c
    """
    with np.errstate(invalid="ignore"):
        return counts.diagonal() / counts.sum(axis=1), counts.diagonal() / counts.sum(axis=0)
