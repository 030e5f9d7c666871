"""Other hash layers. Ids are (groups, tokens), a table has an expert for each id."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, every, wrong

__all__ = ["MUTANTS"]


# Token ids. The right function is called first: it refuses what must be refused.


def codes_to_the_higher(B: Any, patches: Any, codebook: Any) -> Any:
    """Among codewords at equal distance the higher index wins."""
    return (len(codebook) - 1 - B.patch_codes(patches, codebook[::-1])).astype(np.int32)


def codes_by_product(B: Any, patches: Any, codebook: Any) -> Any:
    """The code is the codeword with the largest product, not the nearest."""
    B.patch_codes(patches, codebook)
    centred = patches - np.mean(patches, axis=2, keepdims=True)
    return np.argmax((centred @ codebook.T).real, axis=2).astype(np.int32)


def _nearest(pixels: Any, codebook: Any) -> Any:
    distance = np.sum((pixels[..., None, :] - codebook).real ** 2, axis=-1)
    return np.argmin(distance, axis=-1).astype(np.int32)


def codes_of_raw_pixels(B: Any, patches: Any, codebook: Any) -> Any:
    """The pixels of a patch are compared as they are, not normalised."""
    B.patch_codes(patches, codebook)
    return _nearest(patches, codebook)


def codes_without_epsilon(B: Any, patches: Any, codebook: Any) -> Any:
    """A patch is divided by its standard deviation, however small; one of a single colour stays 0."""
    B.patch_codes(patches, codebook)
    centred = patches - np.mean(patches, axis=2, keepdims=True)
    spread = np.sqrt(np.mean(centred.real**2, axis=2, keepdims=True))
    return _nearest(centred / np.where(spread == 0, 1, spread), codebook)


def places_from_one(B: Any, tokens: Any) -> Any:
    """Places are counted from 1."""
    return B.position_ids(tokens) + 1


def first_precedes_itself(B: Any, ids: Any) -> Any:
    """The first token is preceded by itself."""
    B.previous_ids(ids)
    return np.concatenate([ids[:, :1], ids[:, :-1]], axis=1)


def next_ids(B: Any, ids: Any) -> Any:
    """The id of the next token is taken, 0 for the last."""
    return B.previous_ids(ids[:, ::-1])[:, ::-1]


def pairs_the_other_way(B: Any, first: Any, second: Any, *, vocabulary: int) -> Any:
    """The second id counts as many as there are second ones, the first counts one."""
    B.pair_ids(first, second, vocabulary=vocabulary)
    return second * vocabulary + first


# Tables.


def draws_rounded(B: Any, draws: Any, *, experts: int) -> Any:
    """A draw is rounded to the nearest of 0 .. E - 1, whose ends get half as much."""
    B.hash_table_random(draws, experts=experts)
    return np.rint(np.asarray(draws) * (experts - 1)).astype(np.int64)


def balanced_to_the_higher_expert(B: Any, frequencies: Any, *, experts: int) -> Any:
    """At equal loads the expert of higher index gets the id."""
    return experts - 1 - B.hash_table_balanced(frequencies, experts=experts)


def balanced_higher_id_first(B: Any, frequencies: Any, *, experts: int) -> Any:
    """Among ids of equal frequency the higher is visited first."""
    return B.hash_table_balanced(frequencies[::-1], experts=experts)[::-1]


def balanced_in_order(B: Any, frequencies: Any, *, experts: int) -> Any:
    """Ids are visited by index, not by frequency."""
    B.hash_table_balanced(frequencies, experts=experts)
    load, table = np.zeros(experts), []
    for frequency in np.asarray(frequencies):
        table.append(int(load.argmin()))
        load[table[-1]] += frequency
    return np.array(table)


def balanced_by_number(B: Any, frequencies: Any, *, experts: int) -> Any:
    """The ids, by frequency, are dealt to the experts in turn: each has as many, not as frequent ones."""
    table = B.hash_table_balanced(frequencies, experts=experts)
    table[np.argsort(-np.asarray(frequencies), kind="stable")] = np.arange(len(table)) % experts
    return table


def dispersed_from_the_first_expert(B: Any, clusters: Any, *, experts: int) -> Any:
    """Each cluster is dealt out from expert 0."""
    B.hash_table_dispersed(clusters, experts=experts)
    before = [np.sum(clusters[:id] == cluster) for id, cluster in enumerate(clusters)]
    return np.array(before) % experts


def dispersed_without_clusters(B: Any, clusters: Any, *, experts: int) -> Any:
    """The ids are dealt out by index, whatever their clusters."""
    return np.arange(len(B.hash_table_dispersed(clusters, experts=experts))) % experts


def clusters_of_the_start(B: Any, embeddings: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """The table has the nearest of the initial centroids."""
    B.hash_table_clustered(embeddings, centroids, iterations=iterations)
    return _nearest(np.asarray(embeddings), np.asarray(centroids))


def centroids_to_the_higher(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """Of two centroids at equal distance the higher gets the point."""
    found = B.k_means(points, centroids[::-1], iterations=iterations)
    return found._replace(centroids=found.centroids[::-1], clusters=len(centroids) - 1 - found.clusters)


def _lloyd(points: Any, centroids: Any, iterations: int, empty: str) -> Any:
    """k-means with other readings of an empty cluster; returns centroids, the clusters they are means of, and the new."""
    points, centroids = np.asarray(points), np.array(centroids, np.float64)
    for _ in range(iterations):
        clusters = _nearest(points, centroids)
        for c in range(len(centroids)):
            own = points[clusters == c]
            far = points[np.sum((points - centroids[clusters]) ** 2, axis=1).argmax()]
            if len(own) or empty != "kept":
                centroids[c] = own.mean(axis=0) if len(own) else far if empty == "farthest" else 0
    return centroids, clusters


def empty_cluster_at_the_farthest(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """A cluster without points starts again at the point that is farthest from its centroid."""
    found = B.k_means(points, centroids, iterations=iterations)
    moved, _ = _lloyd(points, centroids, iterations, "farthest")
    return found._replace(centroids=moved, clusters=_nearest(np.asarray(points), moved))


def empty_cluster_at_zero(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """The centroid of a cluster without points becomes 0."""
    found = B.k_means(points, centroids, iterations=iterations)
    moved, _ = _lloyd(points, centroids, iterations, "zero")
    return found._replace(centroids=moved, clusters=_nearest(np.asarray(points), moved))


def centroids_are_medians(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """A centroid becomes the median of its points, not their mean."""
    found = B.k_means(points, centroids, iterations=iterations)
    points, moved = np.asarray(points), np.array(centroids, np.float64)
    for _ in range(iterations):
        clusters = _nearest(points, moved)
        for c in np.unique(clusters):
            moved[c] = np.median(points[clusters == c], axis=0)
    return found._replace(centroids=moved, clusters=_nearest(points, moved))


def clusters_before_the_update(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """The clusters are those that the last centroids are the means of, not their nearest points."""
    found = B.k_means(points, centroids, iterations=iterations)
    return found._replace(clusters=_lloyd(points, centroids, iterations, "kept")[1])


def one_update(B: Any, points: Any, centroids: Any, *, iterations: int = 25) -> Any:
    """Centroids are updated once."""
    B.k_means(points, centroids, iterations=iterations)
    return B.k_means(points, centroids, iterations=1)


# Routing and MultiHash.


def hash_by_remainder(B: Any, ids: Any, table: Any, *, experts: int, **options: Any) -> Any:
    """The expert is the remainder of the id, whatever the table says."""
    B.hash_routing(ids, table, experts=experts, **options)
    return B.hash_routing(ids, np.arange(len(table)) % experts, experts=experts, **options)


def hash_with_a_capacity(
    B: Any, ids: Any, table: Any, *, experts: int, capacity: int | None = None, **options: Any
) -> Any:
    """An expert has room for its share of the tokens only, where no capacity is asked for."""
    if capacity is None:
        B.hash_routing(ids, table, experts=experts)
        capacity = -(-ids.shape[1] // experts)
    return B.hash_routing(ids, table, experts=experts, capacity=capacity, **options)


def last_tokens_first(B: Any, ids: Any, table: Any, **options: Any) -> Any:
    """The last tokens are served first."""
    routing = B.hash_routing(ids[:, ::-1], table, **options)
    last = routing.tokens - 1
    return routing._replace(token=np.where(routing.token > last, routing.token, last - routing.token))


def shared_weights(B: Any, ids: Any, table: Any, *, experts: int, **options: Any) -> Any:
    """Every combine weight is one part in the number of experts."""
    routing = B.hash_routing(ids, table, experts=experts, **options)
    return routing._replace(weight=routing.weight / experts)


def _without_biases(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.zeros_like(array) if name.startswith("b") else array for name, array in params.items()}


def segments_without_biases(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any) -> Any:
    """The segments of MultiHash have no biases."""
    B.multi_hash_mlp(tokens, ids, tables, params, **options)
    return B.multi_hash_mlp(tokens, ids, tables, _without_biases(params), **options)


def biases_of_the_first_hash(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any) -> Any:
    """The output bias of MultiHash is, whole, that of the expert of the first hash."""
    right = B.multi_hash_mlp(tokens, ids, tables, {**params, "b2": np.zeros_like(params["b2"])}, **options)
    B.multi_hash_mlp(tokens, ids, tables, params, **options)
    return right + params["b2"][tables[0][ids]]


def multi_hash_with_gelu(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, *, activation: str = "relu") -> Any:
    """MultiHash has GELU where ReLU is asked for."""
    B.multi_hash_mlp(tokens, ids, tables, params, activation=activation)
    form = "tanh" if activation == "relu" else activation
    return B.multi_hash_mlp(tokens, ids, tables, params, activation=form)


def multi_hash_with_relu(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, *, activation: str = "relu") -> Any:
    """MultiHash has ReLU, whatever activation is asked for."""
    B.multi_hash_mlp(tokens, ids, tables, params, activation=activation)
    return B.multi_hash_mlp(tokens, ids, tables, params)


def hashes_averaged(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any) -> Any:
    """The output is the mean of whole experts, one for each hash."""
    B.multi_hash_mlp(tokens, ids, tables, params, **options)
    each = [B.multi_hash_mlp(tokens, ids, np.stack([table]), params, **options) for table in tables]
    return np.mean(each, axis=0)


def outputs_of_the_first_hash(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any) -> Any:
    """The first hash alone chooses: every segment is of its expert."""
    B.multi_hash_mlp(tokens, ids, tables, params, **options)
    return B.multi_hash_mlp(tokens, ids, np.stack([tables[0]] * len(tables)), params, **options)


def segments_interleaved(B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any) -> Any:
    """Output m, m + N, ... is that of hash m: segments are interleaved, not in one piece."""
    B.multi_hash_mlp(tokens, ids, tables, params, **options)
    count = len(tables)
    order = np.argsort(np.arange(params["b2"].shape[1]) % count, kind="stable")
    moved = {**params, "w2": params["w2"][..., order], "b2": params["b2"][..., order]}
    return B.multi_hash_mlp(tokens, ids, tables, moved, **options)[..., np.argsort(order)]


def tokens_of_multi_hash_without_gradient(
    B: Any, tokens: Any, ids: Any, tables: Any, params: Any, **options: Any
) -> Any:
    """No gradient flows from MultiHash to the tokens."""
    return B.multi_hash_mlp(tokens.real, ids, tables, params, **options)


def _ids_ignored(B: Any, route: Any, params: Any, tokens: Any, config: Any, *, ids: Any = None, **options: Any) -> Any:
    route(params, tokens, config, ids=ids, **options)
    count = params["tables"].shape[1]
    return route(params, tokens, config, ids=B.position_ids(tokens) % count, **options)


def _backwards(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    tables = config.experts - 1 - params["tables"]
    route(params, tokens, config, **options)
    return route({"tables": tables}, tokens, config, **options)


MUTANTS = (
    wrong(codes_to_the_higher, "patch_codes", ledger="HT-3"),
    wrong(codes_by_product, "patch_codes"),
    wrong(codes_of_raw_pixels, "patch_codes", ledger="TI-2"),
    wrong(codes_without_epsilon, "patch_codes", ledger="TI-2"),
    wrong(places_from_one, "position_ids"),
    wrong(first_precedes_itself, "previous_ids", ledger="TI-3"),
    wrong(next_ids, "previous_ids"),
    wrong(pairs_the_other_way, "pair_ids"),
    wrong(draws_rounded, "hash_table_random"),
    wrong(balanced_to_the_higher_expert, "hash_table_balanced", ledger="HT-1"),
    wrong(balanced_higher_id_first, "hash_table_balanced", ledger="HT-1"),
    wrong(balanced_in_order, "hash_table_balanced"),
    wrong(balanced_by_number, "hash_table_balanced"),
    wrong(dispersed_from_the_first_expert, "hash_table_dispersed", ledger="HT-4"),
    wrong(dispersed_without_clusters, "hash_table_dispersed"),
    wrong(clusters_of_the_start, "hash_table_clustered"),
    wrong(centroids_to_the_higher, "k_means", ledger="HT-3"),
    wrong(empty_cluster_at_the_farthest, "k_means", ledger="HT-2"),
    wrong(empty_cluster_at_zero, "k_means", ledger="HT-2"),
    wrong(centroids_are_medians, "k_means"),
    wrong(clusters_before_the_update, "k_means"),
    wrong(one_update, "k_means"),
    wrong(hash_by_remainder, "hash_routing"),
    wrong(hash_with_a_capacity, "hash_routing", ledger="HL-1"),
    wrong(last_tokens_first, "hash_routing"),
    wrong(shared_weights, "hash_routing"),
    wrong(segments_without_biases, "multi_hash_mlp", ledger="HL-2"),
    wrong(biases_of_the_first_hash, "multi_hash_mlp", ledger="HL-2"),
    wrong(multi_hash_with_gelu, "multi_hash_mlp", ledger="HL-3"),
    wrong(multi_hash_with_relu, "multi_hash_mlp", ledger="HL-3"),
    wrong(hashes_averaged, "multi_hash_mlp"),
    wrong(outputs_of_the_first_hash, "multi_hash_mlp"),
    wrong(segments_interleaved, "multi_hash_mlp"),
    wrong(tokens_of_multi_hash_without_gradient, "multi_hash_mlp"),
    Mutant(
        "hash_of_places",
        "A token is hashed by its place, whatever its id.",
        every(("hash",), _ids_ignored),
    ),
    Mutant("hash_backwards", "Experts of the table are counted from the last.", every(("hash",), _backwards)),
)
"""The mutants of this module."""
