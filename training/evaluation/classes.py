"""Computes results per class, and the accuracy of always predicting the largest class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.shown import on_one_line
from moespec.training.data.dataset import Dataset

__all__ = ["always", "beside", "by_class", "class_tables", "confused", "confusion"]

Numbers = NDArray[np.integer[Any]]
CLASSES = 20
"""Maximum number of classes for a full table. For more classes, tables list the classes of lowest recall and the most confused pairs."""


def always(dataset: Dataset) -> tuple[str, float]:
    """Returns the most frequent class of the validation images, and the accuracy of always predicting this class."""
    counts = np.bincount(dataset.validation.labels)
    return dataset.classes[counts.argmax()], float(counts.max() / counts.sum())


def by_class(labels: Numbers, read: Numbers) -> dict[str, float]:
    """Returns "balanced_accuracy", the mean recall over classes with images, and "largest_class", the fraction of images in the largest
    class."""
    images, right = np.bincount(labels), np.bincount(labels, weights=labels == read)
    balanced = np.mean(right[images > 0] / images[images > 0])
    return {"balanced_accuracy": float(balanced), "largest_class": float(images.max() / images.sum())}


def beside(results: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Returns the lines to print after an accuracy on the validation images. The list is empty if the images have no classes."""
    if not dataset.classes:
        return []
    name, fraction = always(dataset)
    balanced = f"; balanced accuracy {results['balanced_accuracy']:.4f}" if "balanced_accuracy" in results else ""
    return [f"always {on_one_line(name)}: {fraction:.4f}{balanced}"]


def confusion(labels: Numbers, read: Numbers, classes: int) -> NDArray[np.int64]:
    """Returns the matrix `(classes, classes)`, in which entry (i, j) is the number of images of class i predicted as class j."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, read), 1)
    return counts


def confused(counts: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Returns up to `most` of the most frequent mistakes, as pairs (label, prediction)."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[: min(most, int(np.count_nonzero(wrong)))]
    return [(int(place) // len(counts), int(place) % len(counts)) for place in order]


def class_tables(counts: NDArray[np.int64], names: tuple[str, ...]) -> dict[str, Any]:
    """Returns tables of the matrix `counts` from `confusion`: the most frequent mistakes, and all classes or those with the lowest recall.

    recall[c]     counts[c, c] / images of class c
    precision[c]  counts[c, c] / images predicted as class c
    """
    images, whole = counts.sum(axis=1), len(names) <= CLASSES
    with np.errstate(invalid="ignore"):  # 0 / 0 is shown as "-"
        recall, precision = counts.diagonal() / images, counts.diagonal() / counts.sum(axis=0)
    order = range(len(names)) if whole else np.argsort(recall, kind="stable")[:CLASSES].tolist()
    shown = [[f"{part[i]:.1%}".replace("nan%", "-") for part in (recall, precision)] for i in order]
    rows = [(i, [names[i], str(images[i]), *of], counts[i]) for i, of in zip(order, shown, strict=True)]
    pairs = [(names[i], names[j], int(counts[i, j]), int(images[i])) for i, j in confused(counts, CLASSES)]
    return {"names": names, "rows": rows, "pairs": pairs, "whole": whole, "images": int(images.sum())}
