"""Classifies images by the nearest neighbours of their frozen features, with more weight on nearer neighbours.

    s_ij      cosine of the features of image i and training image j
    score     sum of exp(s_ij / temperature) over those of the k largest s_ij whose image j has label c
    label     arg max over c

Source: facebookresearch/dino, `eval_knn.py`, `knn_classifier` (temperature 0.07; k = 20 "is usually working the best"), after
Wu et al. 2018 (arXiv 1805.01978), section 3.4.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["nearest_neighbours", "spread", "unit"]

CHUNK = 2**24
"""Maximum number of cosines in memory."""


def nearest_neighbours(
    train: tuple[NDArray[Any], NDArray[np.integer[Any]]],
    test: tuple[NDArray[Any], NDArray[np.integer[Any]]],
    *,
    classes: int,
    neighbours: Sequence[int],
    temperature: float,
) -> dict[str, Any]:
    """Returns the accuracy on the images of `test` for each number of neighbours, `{"neighbours_20": {"accuracy"}}`.

    train, test: features `(N, D)` and labels `(N,)`, with N at least the largest of `neighbours`.
    """
    (features, labels), (held, held_labels) = train, test
    most = max(neighbours)
    references, queries = unit(features), unit(held)
    right = dict.fromkeys(neighbours, 0)
    step = max(1, CHUNK // len(labels))
    for start in range(0, len(queries), step):
        cosines = queries[start : start + step] @ references.T
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :most]
        votes = np.exp((np.take_along_axis(cosines, nearest, 1) - 1.0) / temperature)  # the -1 prevents overflow
        for count in neighbours:
            scores = np.zeros((len(cosines), classes))
            rows = np.repeat(np.arange(len(cosines)), count)
            np.add.at(scores, (rows, labels[nearest[:, :count]].ravel()), votes[:, :count].ravel())
            right[count] += int(np.sum(scores.argmax(axis=1) == held_labels[start : start + step]))
    return {f"neighbours_{count}": {"accuracy": right[count] / len(held_labels)} for count in neighbours}


def spread(features: NDArray[Any]) -> float:
    """Computes the spread of the directions of features `(N, D)`, from 0 (all equal) to 1:

        1 - |mean of f_i / |f_i||^2

    The spread equals the total variance of the normalised features, summed over the D dimensions.
    """
    mean = unit(features).mean(axis=0)
    return float(1 - mean @ mean)


def unit(features: NDArray[Any]) -> NDArray[np.float64]:
    """Scales features to length 1; features of length 0 stay 0."""
    x = np.asarray(features, np.float64)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1.0)
