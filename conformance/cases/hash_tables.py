"""Cases of hash tables and of the clusters on which some tables are based."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid, integers
from moespec.conformance.author.variant import Spec, Variant, variant
from moespec.conformance.format import Tensor

E = 3


def cases() -> Iterator[Definition]:
    yield from _tables()
    yield from _clusterings()


def _case(path: str, name: str, kind: str, purpose: str, *flags: str, **values: Any) -> Definition:
    return single("hash_tables", path, name, kind, purpose, *flags, **{"exact_ties": kind == "tie", **values})


def _of(values: Any) -> Tensor:
    return tensor(values, "ids")


def _tables() -> Iterator[Definition]:
    random, balanced, dispersed = (partial(_case, f"hash_table_{name}") for name in ("random", "balanced", "dispersed"))
    size = "degenerate_size"
    draws = _of(integers("hash/draws", (12,), 0, 127) / 128)
    yield random("random", "value", "Each expert has an equal part of [0, 1).", draws=draws, experts=E)
    edges = _of([0.0, 0.25, 0.5, 0.75, 0.99609375])
    purpose = "A draw at the edge of two parts belongs to the upper."
    yield random("random_edges", "tie", purpose, draws=edges, experts=4)
    counts = np.array([50.0, 20, 10, 8, 5, 4, 2, 1])
    purpose = "The worked example: the most frequent id has an expert of its own."
    yield balanced("balanced", "value", purpose, frequencies=_of(counts), experts=E)
    equal = _of([2.0, 4, 2, 4, 2, 2, 4, 0, 0])
    purpose = "The lower id first, the lower expert at equal loads."
    yield balanced("balanced_tied", "tie", purpose, "tie_order", frequencies=equal, experts=E)
    large = _of([1.0, 2.0**24, 1, 2.0**24, 2.0**24, 1, 1, 1, 1])
    purpose = "Loads that float32 does not have."
    yield balanced("balanced_large", "value", purpose, frequencies=large, experts=E)
    yield balanced("balanced_one", "degenerate", "One id.", size, frequencies=_of([3.0]), experts=E)
    spread = _of([1, 0, 2, 1, 0, 1, 2, 2, 0, 1, 1])
    purpose = "Each cluster is dealt out, each where the last one ended."
    yield dispersed("dispersed", "value", purpose, clusters=spread, experts=E)
    gap = _of([4, 1, 4, 1, 1])
    yield dispersed("dispersed_gap", "degenerate", "A cluster without ids.", size, clusters=gap, experts=2)


def _clusterings() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, points: Any, start: Any, *flags: str, table: bool = False, **options: Any
    ) -> Definition:
        first, second = ("ids", "experts") if table else ("points", "clusters")
        values = {
            "embeddings" if table else "points": tensor(points, f"{first} width"),
            "centroids": tensor(start, f"{second} width"),
        }
        path = "hash_table_clustered" if table else "k_means"
        return _case(path, name, kind, purpose, *flags, **values, **options)

    rows, start = grid("hash/rows", (9, 3)), grid("hash/rows/start", (E, 3))
    yield case("clustered", "value", "Ids that are alike share an expert.", rows, start, table=True)
    size = "degenerate_size"
    points, start = grid("hash/points", (12, 2)), grid("hash/start", (3, 2))
    yield case("k_means", "value", "Until nothing changes.", points, start)
    line, middle = [[0.0], [1.125], [2], [3], [8], [9], [16], [17]], [[0.0], [1.5], [4.25]]
    purpose = "Two updates, of points so close together that no centroid moves far."
    near, close = 2.0**-20 * np.array(line), 2.0**-20 * np.array(middle)
    yield case("k_means_two_updates", "value", purpose, near, close, iterations=2)
    purpose = "The table of one update."
    yield case(
        "clustered_one_update", "value", purpose, np.arange(9.0)[:, None], [[0.0], [1.0]], table=True, iterations=1
    )
    far = np.array([[2.0**30, near] for near in (0.0, 1.0, 3.0, 5.0)])
    purpose = "Points so far from 0 that their squares do not tell them apart."
    yield case("k_means_far", "value", purpose, far, far[[0, 2]], exact_ties=True)  # differences are exact
    purpose = "A cluster without points keeps its centroid."
    yield case("k_means_empty", "degenerate", purpose, line, [[1.25], [64.0], [12.25]], size)
    purpose = "A point halfway between two centroids belongs to the lower."
    halfway = [[0.0], [2], [4], [4], [8]]
    yield case("k_means_tied", "tie", purpose, halfway, [[0.0], [4], [8]], "tie_order", iterations=1)
    yield case("k_means_one", "degenerate", "One cluster: the mean.", points, start[:1], size)


# Variants. A table maps each id to an expert.


def balanced_to_the_higher_expert(B: Spec, frequencies: Array, *, experts: int) -> Any:
    """At equal loads, the expert of higher index gets the id."""
    return experts - 1 - B.hash_table_balanced(frequencies, experts=experts)


def balanced_higher_id_first(B: Spec, frequencies: Array, *, experts: int) -> Any:
    """Among ids of equal frequency, the higher id is assigned first."""
    return B.hash_table_balanced(frequencies[::-1], experts=experts)[::-1]


def balanced_in_order(B: Spec, frequencies: Array, *, experts: int) -> Any:
    """Ids are assigned in order of index, not of frequency."""
    load, table = np.zeros(experts), []
    for frequency in np.asarray(frequencies):
        table.append(int(load.argmin()))
        load[table[-1]] += frequency
    return np.array(table)


def dispersed_from_the_first_expert(B: Spec, clusters: Array, *, experts: int) -> Any:
    """The ids of each cluster are distributed over the experts, starting at expert 0."""
    before = [np.sum(clusters[:id] == cluster) for id, cluster in enumerate(clusters)]
    return np.array(before) % experts


def _nearest(points: Array, centroids: Array) -> Any:
    points, centroids = np.asarray(points), np.asarray(centroids)
    return np.argmin(np.sum((points[:, None] - centroids) ** 2, axis=-1), axis=-1).astype(np.int32)


def centroids_to_the_higher(B: Spec, points: Array, centroids: Array, *, iterations: int = 25) -> Any:
    """Of two centroids at equal distance from a point, the centroid of higher index gets the point."""
    result = B.k_means(points, centroids[::-1], iterations=iterations)
    return result._replace(centroids=result.centroids[::-1], clusters=len(centroids) - 1 - result.clusters)


def _lloyd(
    points: Array, centroids: Array, iterations: int, mean: Any = np.mean, empty: Any = None, nearest: Any = _nearest
) -> Any:
    """Runs k-means with the functions `mean` and `nearest`, and with `empty(points, distances)` as the centroid of an empty cluster.

    Returns the centroids and the cluster of each point.
    """
    points, centroids = np.asarray(points), np.array(centroids, np.float64)
    for _ in range(iterations):
        clusters = nearest(points, centroids)
        for c in range(len(centroids)):
            own = points[clusters == c]
            if len(own):
                centroids[c] = mean(own, axis=0)
            elif empty:
                centroids[c] = empty(points, np.sum((points - centroids[clusters]) ** 2, axis=1))
    return centroids, clusters


def _moved(B: Spec, points: Array, centroids: Array, iterations: int, **other: Any) -> Any:
    result = B.k_means(points, centroids, iterations=iterations)
    moved, _ = _lloyd(points, centroids, iterations, **other)
    return result._replace(centroids=moved, clusters=other.get("nearest", _nearest)(np.asarray(points), moved))


def empty_cluster_at_the_farthest(B: Spec, points: Array, centroids: Array, *, iterations: int = 25) -> Any:
    """An empty cluster restarts at the point that is farthest from its current centroid."""
    return _moved(B, points, centroids, iterations, empty=lambda points, distances: points[distances.argmax()])


def empty_cluster_at_zero(B: Spec, points: Array, centroids: Array, *, iterations: int = 25) -> Any:
    """The centroid of an empty cluster becomes 0."""
    return _moved(B, points, centroids, iterations, empty=lambda points, distances: 0.0)


def ended_by_small_moves(B: Spec, points: Array, centroids: Array, *, iterations: int = 25) -> Any:
    """K-means ends once no centroid moves by more than 1e-4, even if points still change clusters."""
    result = B.k_means(points, centroids, iterations=iterations)
    for _ in range(iterations):
        before, result = centroids, B.k_means(points, centroids, iterations=1)
        centroids = result.centroids
        if np.abs(centroids - before).max() <= 1e-4:
            break
    return result


def variants() -> Iterator[Variant]:
    yield variant(ended_by_small_moves, "k_means", who="scikit-learn")
    yield variant(balanced_to_the_higher_expert, "hash_table_balanced", ledger="HT-1b")
    yield variant(balanced_higher_id_first, "hash_table_balanced", ledger="HT-1b")
    yield variant(balanced_in_order, "hash_table_balanced")
    yield variant(dispersed_from_the_first_expert, "hash_table_dispersed", ledger="HT-4b")
    yield variant(centroids_to_the_higher, "k_means", ledger="HT-3b")
    yield variant(empty_cluster_at_the_farthest, "k_means", ledger="HT-2c")
    yield variant(empty_cluster_at_zero, "k_means", ledger="HT-2")
