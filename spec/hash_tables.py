"""Tables of hash layers: the expert of every token id, made once before training.

| here | Hash (arXiv 2106.04426) |
|---|---|
| `table` (V,) | hash(.), for each of the V ids an expert |
| `experts` | K |

Nothing here draws random numbers: draws and initial centroids are passed in.

Checked against: `scipy.cluster.vq.kmeans2` from the same initial centroids, and a plain search for the nearest centroid
(`k_means`); the definition, that no two experts' shares differ by more than one id, by a search through all tables
(`hash_table_dispersed`); the bound on the largest load (`hash_table_balanced`). The public code of hash layers has the
random table only.

Ambiguity ledger

HT-1: In which order does a balanced table visit ids of equal frequency, and which expert gets an id at equal loads?
    Reading: the lower id first, the lower expert.
    Alternatives: any.
HT-2: What is a cluster of k-means that no point belongs to?
    Reading: it keeps its centroid.
    Alternatives: it is dropped; it starts again at the farthest point.
HT-3: Which centroid is the nearest of two at equal distance?
    Reading: the lower index.
    Alternatives: the higher index.
HT-4: Does dealing a cluster out start again at expert 0?
    Reading: no, it goes on where the last cluster ended, so that the experts are even over all ids too.
    Alternatives: yes; the experts of low index then get more ids.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moespec.spec.checks import as_array, as_ids, check_at_least, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, stable_order

__all__ = [
    "Clustering",
    "hash_table_balanced",
    "hash_table_clustered",
    "hash_table_dispersed",
    "hash_table_random",
    "k_means",
    "nearest",
]

Ids = NDArray[np.int64]


def hash_table_random(draws: ArrayLike, *, experts: int) -> Ids:
    """A random table: `table[v] = floor(experts * draws[v])`.

    Args:
        draws: (ids,), uniform in [0, 1).
        experts: E.

    Returns:
        (ids,) integers below E.

    Raises:
        ConfigError: `experts < 1`. ShapeError, DtypeError: of `draws`. ContractError: a draw outside [0, 1).

    Source: Hash, section 3.1. Section 12.

    >>> hash_table_random([0.0, 0.34, 0.66, 0.99], experts=3).tolist()
    [0, 1, 1, 2]
    """
    experts = check_at_least("experts", experts, 1)
    draws = as_array("draws", draws, "ids").real
    if not ((draws >= 0) & (draws < 1)).all():
        raise ContractError(f"draws: expected numbers in [0, 1), got {draws.tolist()}")
    return (experts * draws).astype(np.int64)


def hash_table_balanced(frequencies: ArrayLike, *, experts: int) -> Ids:
    """A table by frequency: the most frequent id first, each to the expert that has the smallest load so far.

    No expert's load exceeds the mean by more than the largest frequency.

    Args:
        frequencies: (ids,), how often each id occurs, at least 0.
        experts: E.

    Returns:
        (ids,) integers below E.

    Raises:
        ConfigError: `experts < 1`. ShapeError, DtypeError: of `frequencies`. ContractError: a frequency below 0.

    Source: Hash, section 3.1 (balanced assignment). Section 12.

    >>> hash_table_balanced([50.0, 20, 10, 8, 5, 4, 2, 1], experts=3).tolist()  # loads 50, 25 and 25
    [0, 1, 2, 2, 2, 1, 2, 1]
    """
    experts = check_at_least("experts", experts, 1)
    frequencies = as_array("frequencies", frequencies, "ids").real
    if (frequencies < 0).any():
        raise ContractError(f"frequencies: expected at least 0, got {frequencies.tolist()}")
    table = np.zeros(len(frequencies), np.int64)
    load = [0.0] * experts
    for id in stable_order(frequencies):
        table[id] = load.index(min(load))
        load[table[id]] += frequencies[id]
    return table


def hash_table_clustered(embeddings: ArrayLike, centroids: ArrayLike, *, iterations: int = 25) -> Ids:
    """A table of clusters: ids that are alike share an expert.

    Args:
        embeddings: (ids, width) of the ids.
        centroids: (experts, width), where `k_means` starts.
        iterations: see `k_means`.

    Returns:
        (ids,) integers below E, the cluster of each id.

    Raises:
        As `k_means`, which names them `points` and `centroids`.

    Source: Hash, section 3.1 (clustered hashes). Section 12.

    >>> hash_table_clustered([[0.0], [5.0], [1.0], [6.0]], [[6.0], [0.0]]).tolist()
    [1, 0, 1, 0]
    """
    return k_means(embeddings, centroids, iterations=iterations).clusters


def hash_table_dispersed(clusters: ArrayLike, *, experts: int) -> Ids:
    """A table that spreads each cluster over the experts: ids that are alike go to different ones.

    The ids of cluster 0 in order, then those of cluster 1, ..., are dealt to experts 0, 1, ..., E - 1, 0, ... without
    starting again. The experts' shares of each cluster differ by at most one id, and so do those of all ids.

    Args:
        clusters: (ids,) integers of at least 0, the cluster of each id, as from `k_means`.
        experts: E.

    Returns:
        (ids,) integers below E.

    Raises:
        ConfigError: `experts < 1`. ShapeError, DtypeError: of `clusters`. ContractError: a cluster below 0.

    Source: Hash, section 3.1 (dispersed hashes). Section 12.

    >>> hash_table_dispersed([1, 0, 1, 0, 0, 1], experts=2).tolist()
    [1, 0, 0, 1, 0, 1]
    """
    experts = check_at_least("experts", experts, 1)
    clusters = as_ids("clusters", clusters, "ids")
    table = np.zeros(len(clusters), np.int64)
    dealt = 0
    for cluster in np.unique(clusters):
        for id in np.flatnonzero(clusters == cluster):
            table[id] = dealt % experts
            dealt += 1
    return table


class Clustering(NamedTuple):
    """What `k_means` finds: `centroids` (clusters, width), and the nearest of them for each point, `clusters` (points,)."""

    centroids: Array
    clusters: Ids


def k_means(points: ArrayLike, centroids: ArrayLike, *, iterations: int = 25) -> Clustering:
    """Lloyd's algorithm: each centroid becomes the mean of the points that are nearest to it, again and again.

    A cluster without points keeps its centroid. It ends after `iterations` updates, or when no point changes its cluster.

    Args:
        points: (points, width).
        centroids: (clusters, width), where it starts.
        iterations: largest number of updates, at least 1.

    Returns:
        Clustering: the centroids, and the cluster of each point as they are at the end.

    Raises:
        ConfigError: `iterations < 1`. ShapeError, DtypeError, ContractError: of an array.

    Source: Lloyd 1982. Section 12.

    >>> # 5 is as near to 1 as to 9, the lower centroid gets it; later that cluster is empty and stays where it is.
    >>> found = k_means([[0.0], [1.0], [5.0], [6.0]], [[0.0], [1.0], [9.0]])
    >>> found.centroids.tolist(), found.clusters.tolist()
    ([[0.5], [3.0], [5.5]], [0, 0, 2, 2])
    """
    iterations = check_at_least("iterations", iterations, 1)
    points = as_array("points", points, "points width").real
    centroids = as_array("centroids", centroids, "clusters width").real
    check_size("centroids", centroids, 1, points.shape[1], "the width of points")
    clusters = nearest(points, centroids)
    for _ in range(iterations):
        members = [points[clusters == cluster] for cluster in range(len(centroids))]
        centroids = np.stack(
            [own.mean(axis=0) if len(own) else kept for own, kept in zip(members, centroids, strict=True)]
        )
        before, clusters = clusters, nearest(points, centroids)
        if (before == clusters).all():
            break
    return Clustering(centroids, clusters)


def nearest(points: Array, centroids: Array) -> Ids:
    """The nearest centroid of each point: the largest `x c - |c|^2 / 2`, the lower index among equals."""
    scores = points @ centroids.T - 0.5 * np.sum(centroids * centroids, axis=1)
    return np.argmax(scores.real, axis=1).astype(np.int64)
