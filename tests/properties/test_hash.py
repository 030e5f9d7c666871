"""Section 12: hash layers. Ids are (groups, tokens), tables (hashes, ids); dispatch is (groups, tokens, experts, capacity)."""

import numpy as np
from properties.implementations import SPEC, holds
from properties.strategies import one_of, seeds

GROUPS, T, V, E, D, H = 2, 6, 5, 3, 4, 6
HASHES = one_of(1, 2)
CAPACITY = one_of(1, 3)


def drawn(seed, hashes=1):
    """Tokens, ids and tables."""
    random = np.random.default_rng(seed)
    tokens = random.normal(size=(GROUPS, T, D))
    ids = random.integers(0, V, (GROUPS, T), dtype=np.int32)
    return tokens, ids, random.integers(0, E, (hashes, V), dtype=np.int32)


def experts(seed):
    """Parameters of the perceptrons."""
    random = np.random.default_rng(seed)
    shapes = {"w1": (E, D, H), "b1": (E, H), "w2": (E, H, D), "b2": (E, D)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


@holds(wrong="hash_by_remainder", seed=seeds)
def test_a_token_has_the_expert_of_its_id_and_no_other(B, seed):
    """Without a capacity every token has one slot, of weight 1, at the expert that the table has for its id."""
    _, ids, (table,) = drawn(seed)
    dispatch, combine = B.hash_routing(ids, table, experts=E)
    np.testing.assert_array_equal(dispatch.sum(axis=3), table[ids][..., None] == np.arange(E))
    np.testing.assert_array_equal(dispatch, combine)


@holds(wrong="last_tokens_first", seed=seeds, capacity=CAPACITY)
def test_a_capacity_serves_the_first_tokens(B, seed, capacity):
    """An expert with room for C has the first C tokens that ask for it, in a prefix of its slots."""
    _, ids, (table,) = drawn(seed)
    dispatch, _ = B.hash_routing(ids, table, experts=E, capacity=capacity)
    asked = table[ids][..., None] == np.arange(E)
    served = asked & (np.cumsum(asked, axis=1) <= capacity)
    np.testing.assert_array_equal(dispatch.sum(axis=3), served)
    slots = np.minimum(asked.sum(axis=1), capacity)
    np.testing.assert_array_equal(dispatch.sum(axis=1), np.arange(capacity) < slots[..., None])


def permuted(module, tokens, ids, tables, renamed, moved, params):
    """MultiHash as it is, and with the ids renamed in tables and tokens alike."""
    return {
        "here": module.multi_hash_mlp(tokens, ids, tables, params),
        "there": module.multi_hash_mlp(tokens, renamed, moved, params),
    }


@holds(
    wrong={"multi_hash_mlp": lambda B, tokens, ids, tables, params: tokens + ids[..., None]}, seed=seeds, hashes=HASHES
)
def test_names_of_ids_mean_nothing(B, seed, hashes):
    """Ids renamed in the tables and the tokens alike change no output."""
    tokens, ids, tables = drawn(seed, hashes)
    order = np.random.default_rng(seed).permutation(V)
    given = {"renamed": np.argsort(order)[ids].astype(np.int32), "moved": tables[:, order]}
    found = B.run(permuted, tokens=tokens, ids=ids, tables=tables, params=experts(seed), **given)
    np.testing.assert_array_equal(found["here"], found["there"])


@holds(wrong="segments_without_biases", seed=seeds, hashes=HASHES)
def test_hashes_that_agree_are_the_plain_expert(B, seed, hashes):
    """With all k_m equal to k the output is that of expert k, and the parameters are those of E experts."""
    tokens, ids, (table,) = drawn(seed)
    params = experts(seed)
    found = B.multi_hash_mlp(tokens, ids, np.stack([table] * hashes), params)
    w1, b1, w2, b2 = (params[name][table[ids]] for name in ("w1", "b1", "w2", "b2"))
    inner = np.maximum(np.einsum("gtd,gtdh->gth", tokens, w1) + b1, 0)
    np.testing.assert_allclose(found, np.einsum("gth,gthd->gtd", inner, w2) + b2, atol=1e-12)


@holds(wrong="codes_of_raw_pixels", seed=seeds)
def test_a_code_sees_neither_brightness_nor_contrast(B, seed):
    """Codes of `a x + b` are those of x, and no codeword is nearer than the code's."""
    random = np.random.default_rng(seed)
    patches, codebook = random.normal(size=(GROUPS, T, 8)), random.normal(size=(V, 8))
    codes = B.patch_codes(patches, codebook)
    np.testing.assert_array_equal(B.patch_codes(3 * patches - 2, codebook), codes)
    centred = patches - patches.mean(axis=2, keepdims=True)
    normalized = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-6)
    distances = np.sum((normalized[:, :, None] - codebook) ** 2, axis=3)
    np.testing.assert_array_equal(codes, distances.argmin(axis=2))


@holds(wrong="pairs_the_other_way", seed=seeds)
def test_a_pair_tells_both_ids(B, seed):
    """Division by the vocabulary gives the two ids back; the previous ids are shifted by one, from 0."""
    _, ids, _ = drawn(seed)
    previous = B.previous_ids(ids)
    pairs = B.pair_ids(previous, ids, vocabulary=V)
    np.testing.assert_array_equal(pairs // V, previous)
    np.testing.assert_array_equal(pairs % V, ids)
    np.testing.assert_array_equal(previous, np.pad(ids, ((0, 0), (1, 0)))[:, :-1])


@holds(wrong="places_from_one", seed=seeds)
def test_places_do_not_depend_on_content(B, seed):
    """All groups have the ids 0, 1, 2, ..."""
    np.testing.assert_array_equal(B.position_ids(drawn(seed)[0]), [np.arange(T)] * GROUPS)


@holds(wrong="balanced_in_order", on=SPEC, seed=seeds)
def test_a_balanced_table_is_nearly_even(B, seed):
    """The largest load is at most the mean and the largest frequency, and at most 4/3 of the smallest possible one."""
    random = np.random.default_rng(seed)
    frequencies = random.integers(1, 20, 8).astype(float)
    table = B.hash_table_balanced(frequencies, experts=E)
    loads = np.bincount(table, weights=frequencies, minlength=E)
    assert loads.max() <= frequencies.mean() * 8 / E + frequencies.max()
    every = np.array(np.meshgrid(*[range(E)] * 8)).reshape(8, -1).T
    worst = np.max([(every == e) @ frequencies for e in range(E)], axis=0)
    assert loads.max() <= 4 / 3 * worst.min() + 1e-9


@holds(wrong="dispersed_without_clusters", on=SPEC, seed=seeds)
def test_a_dispersed_table_spreads_every_cluster(B, seed):
    """The experts' shares of a cluster, and of all ids, differ by one at most."""
    clusters = np.random.default_rng(seed).integers(0, 4, 17)
    table = B.hash_table_dispersed(clusters, experts=E)
    for group in (clusters >= 0, *(clusters == c for c in np.unique(clusters))):
        shares = np.bincount(table[group], minlength=E)
        assert shares.max() - shares.min() <= 1


@holds(wrong="clusters_before_the_update", on=SPEC, seed=seeds)
def test_clusters_are_the_nearest_centroids(B, seed):
    """After any number of updates each point belongs to the nearest of the centroids that are returned."""
    points = np.random.default_rng(seed).normal(size=(20, 2))
    found = B.k_means(points, points[:4], iterations=1)
    distances = np.sum((points[:, None] - found.centroids) ** 2, axis=2)
    np.testing.assert_array_equal(found.clusters, distances.argmin(axis=1))
