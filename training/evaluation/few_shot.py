"""Few-shot linear evaluation: fits a linear classifier of frozen features to a few images per class.

    mu, sigma   mean, and population standard deviation + 1e-5, of each feature over the N chosen images
    x'          ((x - mu) / sigma, 100)                          the last feature is a bias with almost no regularisation
    Y           2 onehot(label) - 1
    W           (X'^T X' + l2 I)^-1 X'^T Y        =        X'^T (X' X'^T + l2 I)^-1 Y
    label       arg max of x' W

The chosen images of a class are the first `shots` images of a random permutation of its training images, or all images of a small class.
The generator `numpy.random.default_rng(seed)` draws one permutation per class, in the order of the classes.

Sources: google-research/big_vision, `big_vision/evaluators/fewshot_lsr.py`, `_precompute_cache` and
`compute_fewshot_metrics` (three seeds; l2 = 2^10 in `configs/common_fewshot.py`); google-research/vmoe,
`vmoe/evaluate/fewshot.py`, the same functions and `_find_best_l2_reg` (l2 from 2^-10 to 2^19 in `configs/common_fewshot.py`). Both sources
compute in float32; this module computes in float64.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_l2", "few_shot", "ridge"]

BIAS = 100.0
Array = NDArray[np.float64]


def few_shot(
    train: tuple[NDArray[Any], NDArray[np.integer[Any]]],
    test: tuple[NDArray[Any], NDArray[np.integer[Any]]],
    *,
    classes: int,
    shots: Sequence[int],
    l2: Sequence[float],
    seeds: int,
) -> dict[str, Any]:
    """Fits ridge regressions to `shots` images of each class in `train`, and computes the accuracies on `test`.

    train, test: features `(N, D)` and labels `(N,)`. Returns an entry for each number of shots, `{"shots_10": {"accuracy", "l2",
    "by_seed"}}`: the mean accuracy over the seeds 0, 1, ..., the best L2 regularisation, and the accuracy for each seed.
    """
    (features, labels), (held, held_labels) = train, test
    results: dict[str, Any] = {}
    for count in shots:
        accuracies = np.empty((seeds, len(l2)))
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            chosen = np.concatenate(
                [random.permutation(np.flatnonzero(labels == label))[:count] for label in range(classes)]
            )
            predictions = ridge(features[chosen], labels[chosen], held, classes=classes, l2=l2)
            accuracies[seed] = [np.mean(found == held_labels) for found in predictions]
        best = best_l2(accuracies)
        by_seed = accuracies[:, best]
        results[f"shots_{count}"] = {"accuracy": float(by_seed.mean()), "l2": l2[best], "by_seed": by_seed.tolist()}
    return results


def ridge(
    features: NDArray[Any], labels: NDArray[np.integer[Any]], held: NDArray[Any], *, classes: int, l2: Sequence[float]
) -> list[NDArray[np.intp]]:
    """Fits ridge regressions to `features` `(N, D)` and `labels` `(N,)`. Returns predicted labels `(M,)` of `held` `(M, D)` for each `l2`.

    As in the sources, one eigendecomposition of the smaller of X'^T X' and X' X'^T gives the solutions for all values in `l2`.
    """
    from scipy.linalg import eigh  # imported here, since the import is slow

    x = np.asarray(features, np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-5

    def standardised(values: NDArray[Any]) -> Array:
        scaled = (np.asarray(values, np.float64) - mean) / deviation
        return np.pad(scaled, ((0, 0), (0, 1)), constant_values=BIAS)

    x = standardised(x)
    y = 2.0 * np.eye(classes)[labels] - 1.0
    if x.shape[0] >= x.shape[1]:
        values, q = eigh(x.T @ x)
        left, right = q, q.T @ (x.T @ y)
    else:
        values, q = eigh(x @ x.T)
        left, right = x.T @ q, q.T @ y
    scores = standardised(held) @ left
    return [np.argmax(scores / (values + strength) @ right, axis=1) for strength in l2]


def best_l2(accuracies: Array) -> int:
    """Returns the column of `accuracies` (seeds, L2 values) with the best mean rank, the first one if several are equal.

    The rule follows vmoe, which averages ranks over data sets instead of seeds. The chosen L2 value depends on the test images.
    """
    ranks = np.argsort(np.argsort(accuracies, axis=1), axis=1)
    return int(np.argmax(ranks.mean(axis=0)))
