"""The tables that hash layers use to map every token id to an expert. The tables are built once, before training.

| here | Hash (arXiv 2106.04426) |
|---|---|
| `table` (V,) | hash(.), an expert for each of the V ids |
| `experts` | K |

The functions generate no random numbers. The caller passes random draws and initial centroids.

The public code of hash layers (facebookresearch/ParlAI, HashLayerFFN.hash) implements only the random table.

Ambiguity ledger

HT-1: How does a balanced table break ties between ids of equal frequency and between experts of equal load?
    Reading: ties go to the lower id and to the expert with the lower index.
    Alternative b: ties are broken arbitrarily.
HT-2: What happens to a k-means cluster without points?
    Reading: the cluster keeps its centroid.
    Alternative b: the cluster is dropped.
    Alternative c: the cluster restarts at the farthest point.
HT-3: Which centroid is the nearest if two centroids are at equal distance?
    Reading: the centroid with the lower index counts as the nearest.
    Alternative b: the centroid with the higher index counts as the nearest.
HT-4: Does a dispersed table start each cluster at expert 0?
    Reading: no, each cluster continues after the last expert of the previous one, so the numbers of ids per expert differ by at most 1.
    Alternative b: yes, each cluster starts at expert 0. Experts with a low index then get more ids.
"""

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.clustering import k_means
from moespec.spec.algorithms.hash_layers import check_tables, hash_table_of
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, Shared, stable_order
from moespec.spec.values import as_array, as_ids, even

__all__ = ["hash_scores", "hash_table_balanced", "hash_table_clustered", "hash_table_dispersed", "hash_table_random"]

ALGORITHMS = (
    Algorithm(
        "hash_tables",
        "Roller et al. 2021 (arXiv 2106.04426), section 3.1",
        3,
        ("hash_table_balanced", "hash_table_clustered", "hash_table_dispersed", "hash_table_random", "k_means"),
    ),
)

Ids = NDArray[np.int64]


def hash_table_random(draws: Shared, *, experts: int) -> Ids:
    """Returns a random table: `table[v] = floor(experts * draws[v])`.

    Args:
        draws: (ids,), uniform in [0, 1).
        experts: E, at least 1.

    Returns:
        (ids,) integers below E.

    Source: Hash, section 3.1.

    >>> hash_table_random([0.0, 0.34, 0.66, 0.99], experts=3).tolist()
    [0, 1, 1, 2]
    """
    experts = check_at_least("experts", experts, 1)
    draws = as_array("draws", draws, "ids").real
    if not ((draws >= 0) & (draws < 1)).all():
        raise ContractError(f"draws: expected numbers in [0, 1), got {draws.tolist()}")
    return (experts * draws).astype(np.int64)


def hash_table_balanced(frequencies: Shared, *, experts: int) -> Ids:
    """Returns a table that balances loads: in descending order of frequency, each id goes to the expert with the smallest load so far.

    The load of an expert is the sum of the frequencies of its ids. No load exceeds the mean by more than the largest frequency.

    Args:
        frequencies: (ids,), the frequency of each id, at least 0.
        experts: E, at least 1.

    Returns:
        (ids,) integers below E.

    Source: Hash, section 3.1 (balanced assignment).

    >>> hash_table_balanced([50.0, 20, 10, 8, 5, 4, 2, 1], experts=3).tolist()  # loads 50, 25 and 25
    [0, 1, 2, 2, 2, 1, 2, 1]
    """
    experts = check_at_least("experts", experts, 1)
    frequencies = as_array("frequencies", frequencies, "ids").real
    if (frequencies < 0).any():
        raise ContractError(f"frequencies: expected no negative numbers, got {frequencies.tolist()}")
    table = np.zeros(len(frequencies), np.int64)
    load = [0.0] * experts
    for id in stable_order(frequencies):
        table[id] = load.index(min(load))
        load[table[id]] += frequencies[id]
    return table


def hash_table_clustered(embeddings: Shared, centroids: Shared, *, iterations: int = 25) -> Ids:
    """Returns a table that assigns ids with similar embeddings to the same expert.

    Args:
        embeddings: (ids, width), one row per id.
        centroids: (experts, width), the initial centroids of `k_means`.
        iterations: see `k_means`.

    Returns:
        (ids,) integers below E, the cluster of each id.

    Source: Hash, section 3.1 (clustered hashes).

    >>> hash_table_clustered([[0.0], [5.0], [1.0], [6.0]], [[6.0], [0.0]]).tolist()
    [1, 0, 1, 0]
    """
    points = as_array("embeddings", embeddings, "ids width")
    return k_means(points, centroids, iterations=iterations).clusters


def hash_table_dispersed(clusters: Shared, *, experts: int) -> Ids:
    """Returns a table that spreads the ids of each cluster over the experts.

    The ids are sorted by cluster and then assigned in turn to experts 0, 1, ..., E - 1, 0, and so on.
    The numbers of ids per expert differ by at most one, both within each cluster and overall.

    Args:
        clusters: (ids,) non-negative integers: the cluster of each id, for example from `k_means`.
        experts: E, at least 1.

    Returns:
        (ids,) integers below E.

    Source: Hash, section 3.1 (dispersed hashes).

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


def hash_scores(ids: ArrayLike, tables: Shared, *, experts: int) -> Array:
    """Computes scores with which `token_choice` selects the K experts that the tables assign to each token's id, in this order:

        scores[t, e] = sum_k (K - k) [tables[k, ids[t]] = e]

    If an id has an expert twice, `token_choice` also selects an expert with the score 0.

    Args:
        ids: (tokens,) integers, from 0 to V - 1.
        tables: (hashes, ids), whole numbers from 0 to E - 1, in a floating or integer dtype: the K different experts of each id.
        experts: E, at least 1.

    Returns:
        (tokens, experts).

    Raises:
        ContractError: an entry of `tables` is not a whole number.

    Source: huggingface/transformers, src/transformers/models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HashRouter.forward.

    >>> hash_scores([2, 0], [[0.0, 1.0, 1.0], [1.0, 2.0, 0.0]], experts=3).tolist()
    [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0]]
    """
    experts = check_at_least("experts", experts, 1)
    array = even("tables", tables)
    check_tables(array, 0)
    rows = np.stack([hash_table_of(array, hash=k) for k in range(len(array))])
    rows = as_ids("tables", rows, "hashes ids", below=experts)
    chosen = rows[:, as_ids("ids", ids, "tokens", below=rows.shape[1]), None] == np.arange(experts)
    return np.einsum("k,kte->te", np.arange(len(rows), 0.0, -1.0), chosen)
