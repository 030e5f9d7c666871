"""Confidence intervals of accuracy differences: a bootstrap over seeds and images.

c_esn in {0, 1} is 1 if entry e with seed s classifies image n correctly; the accuracy of an entry is the mean over seeds and images. Each
replicate draws S - 1 of the S seeds and N of the N images with replacement, and uses the same draws for all entries. The accuracies give:

    difference    d_ij = accuracy_i - accuracy_j
    error         s_ij = standard deviation of d_ij over replicates
    interval      d_ij +- q s_ij,   q = 95 % quantile over replicates of   max_ij |d*_ij - mean d*_ij| / s_ij

All intervals hold simultaneously with 95 % confidence. Drawing S - 1 of the seeds makes the variance of a mean over few seeds
unbiased; drawing seeds and images independently is mildly conservative (Owen and Eckles 2012, arXiv 1106.2125). A single seed has no
intervals: intervals from the images alone would not include the variation between seeds.

If a measure is one number m_es per seed, d_ij is the mean over seeds of m_is - m_js, s_ij is the standard error of d_ij (divisor S - 1),
and q is the quantile of Student's t with S - 1 degrees of freedom at 1 - 0.05 / (2 pairs), which is Bonferroni's conservative correction.
"""

import math
import statistics
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["REPLICATES", "Difference", "differences", "differences_of_seeds", "pareto", "sentences", "spread"]

REPLICATES, CHUNK, LEVEL = 2000, 100, 0.95


class Difference(NamedTuple):
    """The difference between the accuracies (or measures) of `first` and `second`, with its confidence interval."""

    first: str
    second: str
    difference: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def differences(right: Mapping[str, NDArray[np.bool_]], *, seed: int = 0) -> list[Difference]:
    """Compares each pair of entries, the better one first. Returns [] for a single seed. right: an array `(seeds, images)` per entry."""
    names = sorted(right, key=lambda name: -float(right[name].mean()))
    if len(names) < 2 or len(right[names[0]]) < 2:
        return []
    replicates = _replicates(np.stack([right[name] for name in names]), np.random.default_rng(seed))  # (R, E)
    first, second = np.triu_indices(len(names), 1)
    drawn = replicates[:, first] - replicates[:, second]
    error = drawn.std(axis=0)
    # If two entries are correct on the same images, the error of their difference is 0. The pair must not widen other intervals.
    scaled = np.abs(drawn - drawn.mean(axis=0)) / np.where(error > 0, error, np.inf)
    quantile = float(np.quantile(scaled.max(axis=1), LEVEL))
    pairs = []
    for i, j, half in zip(first, second, quantile * error, strict=True):
        difference = float(right[names[i]].mean() - right[names[j]].mean())
        pairs.append(Difference(names[i], names[j], difference, difference - float(half), difference + float(half)))
    return pairs


def differences_of_seeds(values: Mapping[str, list[float]]) -> list[Difference]:
    """Compares each pair of entries by one number per seed, the better entry first. Returns an empty list for a single seed."""
    names = sorted(values, key=lambda name: -sum(values[name]))
    pairs, seeds = list(combinations(names, 2)), len(values[names[0]]) if names else 0
    if seeds < 2:
        return []
    from scipy.special import stdtrit  # imported here, since this import is slow

    quantile, found = float(stdtrit(seeds - 1, 1 - (1 - LEVEL) / 2 / max(1, len(pairs)))), []
    for first, second in pairs:
        apart = np.subtract(values[first], values[second])
        difference, error = float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(seeds)
        # If a measure is coarse, all seeds can have the same difference although chance affects it. The interval then includes 0.
        half = quantile * error if error > 1e-12 else difference
        found.append(Difference(first, second, difference, difference - half, difference + half))
    return found


def _replicates(right: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.float64]:
    """Returns the accuracies `(replicates, entries)` of the entries in each replicate. right: an array `(entries, seeds, images)`."""
    entries, seeds, images = right.shape
    cells = right.reshape(entries * seeds, images).astype(np.float64)
    drawn = seeds - 1
    parts = []
    for _ in range(0, REPLICATES, CHUNK):
        weights = random.multinomial(images, np.full(images, 1 / images), CHUNK) / images  # (R, N)
        of_seeds = random.multinomial(drawn, np.full(seeds, 1 / seeds), CHUNK) / drawn  # (R, S)
        accuracies = (weights @ cells.T).reshape(CHUNK, entries, seeds)
        parts.append(np.einsum("res,rs->re", accuracies, of_seeds))
    return np.concatenate(parts)


def spread(values: list[float]) -> float | None:
    """The standard deviation over seeds (divisor S - 1), or None for a single seed."""
    return statistics.stdev(values) if len(values) > 1 else None


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points (cost, accuracy) on the Pareto front, cheapest first. Each is more accurate than all cheaper points."""
    front: list[str] = []
    best = -np.inf
    for name, (_, accuracy) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if accuracy > best:
            front.append(name)
            best = accuracy
    return front


def sentences(found: list[Difference], *, seeds: int, images: int | None) -> list[str]:
    """Describes which differences are significant. images: the number of images in the bootstrap, or None."""
    about, sure = f"{seeds} seeds", [one for one in found if one.sure]
    about += "" if images is None else f" and {images} images"
    if seeds == 1:
        return ["One seed cannot separate differences from chance; use several, such as --seeds 5."]
    if not found:
        return []
    if not sure:
        one, pairs = found[0], len(found)
        none = f"any of the {pairs} pairs" if pairs > 1 else f"{one.first} and {one.second}"
        return [f"No significant difference between {none} (95 % confidence, {about})."]
    by_first: dict[str, list[Difference]] = {}
    for one in sure:
        by_first.setdefault(one.first, []).append(one)
    lines = [
        f"{name} is better than "
        + ", ".join(f"{one.second} (by {100 * one.low:.1f} to {100 * one.high:.1f} points)" for one in ones)
        + "."
        for name, ones in by_first.items()
    ]
    told = f"{len(sure)} of the {len(found)} pairs differ" if len(found) > 1 else "The two entries differ"
    return [f"{told} significantly (95 % confidence for all pairs simultaneously, {about}).", *lines]
