"""k-means, which hash layers use to group similar patches and ids.

A cluster is the set of points with the same nearest centroid. Ties go to the centroid with the lower index.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.spec.checks import check_at_least, check_size
from moespec.spec.numerics import Array, Shared
from moespec.spec.values import as_array

__all__ = ["Clustering", "k_means"]

Ids = NDArray[np.int64]


class Clustering(NamedTuple):
    """The result of `k_means`: `centroids` (clusters, width), and `clusters` (points,), the index of each point's centroid."""

    centroids: Array
    clusters: Ids


def k_means(points: Shared, centroids: Shared, *, iterations: int = 25) -> Clustering:
    """Runs Lloyd's algorithm, which repeatedly moves each centroid to the mean of the points nearest to it.

        cluster[i] = argmin_k |points[i] - centroids[k]|^2     ties by lower index

    A cluster without points keeps its centroid. The algorithm ends after `iterations` updates, or when no point changes its cluster.

    Args:
        points: (points, width).
        centroids: (clusters, width), the initial centroids.
        iterations: the maximum number of updates, at least 1.

    Returns:
        Clustering: the final centroids, and the cluster of each point.

    Source: Lloyd 1982.

    >>> # 5 is equally near to 1 and 9, so cluster 1 gets it. Later that cluster is empty and keeps its centroid.
    >>> found = k_means([[0.0], [1.0], [5.0], [6.0]], [[0.0], [1.0], [9.0]])
    >>> found.centroids.tolist(), found.clusters.tolist()
    ([[0.5], [3.0], [5.5]], [0, 0, 2, 2])
    >>> k_means([[1e8], [1e8 + 1]], [[1e8], [1e8 + 1]]).clusters.tolist()
    [0, 1]
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
    """Returns the index of the centroid nearest to each point. Subtracts before squaring, to avoid cancellation for points far from 0."""
    from scipy.spatial.distance import cdist  # imported here because the import is slow

    distances = cdist(points, centroids, "sqeuclidean")
    return np.argmin(distances.real, axis=1).astype(np.int64)
