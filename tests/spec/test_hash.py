"""Section 12: token ids, tables, routing and MultiHash, against definitions, searches and SciPy."""

import itertools

import numpy as np
import pytest
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist

from moespec import spec
from moespec.spec import ROUTERS
from moespec.spec.token_ids import normalized_patches

SEEDS = range(20)
MLP_AXES = {"w1": (3, 4, 6), "b1": (3, 6), "w2": (3, 6, 6), "b2": (3, 6)}


def mlp(random):
    return {name: random.standard_normal(shape) for name, shape in MLP_AXES.items()}


# Tables.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("iterations", [1, 2, 5, 25])
@pytest.mark.filterwarnings("ignore:One of the clusters is empty")  # which then keeps its centroid there, too
def test_k_means_is_that_of_scipy(seed, iterations):
    """The same centroids; SciPy's labels are those before the last update, ours the nearest of what is returned."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((60, 3)) + 4 * random.integers(0, 3, (60, 1))
    start = points[random.choice(60, 5, replace=False)]
    found = spec.k_means(points, start, iterations=iterations)
    theirs, labels = kmeans2(points, start, iter=iterations, minit="matrix", missing="warn")
    np.testing.assert_allclose(found.centroids, theirs, atol=1e-12)
    np.testing.assert_array_equal(found.clusters, cdist(points, found.centroids).argmin(axis=1))
    if iterations == 25:  # settled
        np.testing.assert_array_equal(found.clusters, labels)


def test_k_means_never_gets_worse():
    random = np.random.default_rng(0)
    points, start = random.random((80, 2)), random.random((7, 2))
    costs = [
        np.sum((points - found.centroids[found.clusters]) ** 2)
        for found in (spec.k_means(points, start, iterations=n) for n in range(1, 12))
    ]
    assert (np.diff(costs) <= 1e-12).all()
    assert costs[-1] < costs[0]


def test_clustered_table_is_k_means():
    random = np.random.default_rng(1)
    points = random.random((30, 2))
    table = spec.hash_table_clustered(points, points[:4], iterations=3)
    np.testing.assert_array_equal(table, spec.k_means(points, points[:4], iterations=3).clusters)


def spread(counts):
    return max(counts) - min(counts)


@pytest.mark.parametrize("clusters", list(itertools.product(range(3), repeat=5))[::7])
@pytest.mark.parametrize("experts", [2, 3])
def test_dispersed_table_among_all_tables(clusters, experts):
    """It is one of the tables, of all that there are, whose clusters and whole are spread as evenly as can be.

    Of those it is the first in the order of the walk: cluster by cluster, id by id, each expert read as how far it is
    from the one that is next.
    """
    walk = sorted(range(5), key=lambda id: (clusters[id], id))

    def even(table):
        groups = [range(5), *([id for id in range(5) if clusters[id] == c] for c in set(clusters))]
        return all(spread([[table[id] for id in group].count(e) for e in range(experts)]) <= 1 for group in groups)

    def distance(table):
        return [(table[id] - n) % experts for n, id in enumerate(walk)]

    best = min((table for table in itertools.product(range(experts), repeat=5) if even(table)), key=distance)
    assert tuple(spec.hash_table_dispersed(np.array(clusters), experts=experts)) == best


@pytest.mark.parametrize("seed", SEEDS)
def test_balanced_table(seed):
    """The largest load is at most the mean and one id more; ids of distinct frequency may come in any order."""
    random = np.random.default_rng(seed)
    frequencies = (random.permutation(50) + 1.0) ** 2
    table = spec.hash_table_balanced(frequencies, experts=4)
    loads = np.bincount(table, weights=frequencies, minlength=4)
    assert loads.max() <= loads.mean() + frequencies.max()
    order = random.permutation(50)
    np.testing.assert_array_equal(spec.hash_table_balanced(frequencies[order], experts=4), table[order])


def test_balanced_table_of_zipf_beats_a_random_one():
    frequencies = 1 / np.arange(1, 2001)
    balanced = spec.hash_table_balanced(frequencies, experts=8)
    random = spec.hash_table_random(np.random.default_rng(0).random(2000), experts=8)
    worst = [np.bincount(t, weights=frequencies).max() / (frequencies.sum() / 8) for t in (balanced, random)]
    assert worst[0] < 1.001 < 1.1 < worst[1]


def test_random_table():
    table = spec.hash_table_random(np.random.default_rng(0).random(9000), experts=3)
    assert np.bincount(table).tolist() == pytest.approx([3000] * 3, rel=0.05)
    assert spec.hash_table_random([np.nextafter(1, 0)], experts=7).tolist() == [6]


# Ids.


@pytest.mark.parametrize("seed", SEEDS)
def test_patch_codes_by_distances(seed):
    random = np.random.default_rng(seed)
    patches, codebook = random.random((9, 12)) * 10, random.standard_normal((7, 12))
    standard = (patches - patches.mean(axis=1, keepdims=True)) / np.sqrt(patches.var(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_array_equal(spec.patch_codes(patches, codebook), cdist(standard, codebook).argmin(axis=1))
    np.testing.assert_allclose(normalized_patches(patches), standard)
    np.testing.assert_array_equal(spec.patch_codes(3 * patches - 5, codebook), spec.patch_codes(patches, codebook))


# Routing and MultiHash.


def test_multi_hash_segment_by_segment():
    """Hidden unit j and output j are those of the expert of the hash of their segment."""
    random = np.random.default_rng(1)
    params, x, tables = mlp(random), random.standard_normal((1, 4)), np.array([[0], [2], [1]])
    of_unit = np.repeat(tables[:, 0], 2)  # six units, three segments
    u = [max(0.0, x[0] @ params["w1"][of_unit[j], :, j] + params["b1"][of_unit[j], j]) for j in range(6)]
    y = [np.dot(u, params["w2"][of_unit[j], :, j]) + params["b2"][of_unit[j], j] for j in range(6)]
    np.testing.assert_allclose(spec.multi_hash_mlp(x, [0], tables, params)[0], y, atol=1e-13)


# Errors.


def route(ids=None, **fields):
    config = ROUTERS["hash"].options(width=2, experts=2, tokens=3, **fields)
    return ROUTERS["hash"].route({"tables": np.array([[0.0, 1, 1]])}, np.ones((3, 2)), config, ids=ids)


def test_without_ids_the_router_hashes_places():
    np.testing.assert_array_equal(route().routing.dispatch, route(ids=np.array([0, 1, 2])).routing.dispatch)
    assert route().metrics["dropped"] == 0
    assert route(capacity_factor=1.0).routing.dispatch.shape == (3, 2, 2)


@pytest.mark.parametrize("far", [1e8, 1e12])
def test_k_means_tells_points_apart_far_from_zero(far):
    """The squares of the points cancel there; centring alone would not help in a line with a point at 0."""
    points = np.array([[0.0], [far], [far + 1]])
    assert spec.k_means(points, points).clusters.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([[0.0, np.nan]], r"tables: every value must be finite, but the value at \(0, 1\) is nan"),
        ([[0.0, 1.9]], r"tables: expected whole numbers, but the value at \(0, 1\) is 1.9"),
        ([[0.0, -1.0]], "tables: expected integers of at least 0"),
        ([[0.0, 1e300]], r"tables: expected whole numbers, but the value at \(0, 1\) is 1e\+300"),
    ],
)
def test_tables_hold_whole_numbers(tables, words):
    with pytest.raises(spec.ContractError, match=words):
        spec.hash_table_of(tables)
    assert spec.hash_table_of([[0, 1]]).tolist() == spec.hash_table_of([[0.0, 1.0]]).tolist() == [0, 1]


def test_pairs_beyond_64_bits_are_an_error():
    for first in (2**61, 2**62):
        with pytest.raises(spec.ContractError, match=f"first: {first} times vocabulary=4"):
            spec.pair_ids([first], [0], vocabulary=4)
    assert spec.pair_ids([2**61 - 1], [3], vocabulary=4).tolist() == [2**63 - 1]
    with pytest.raises(spec.ContractError, match="first: expected integers of at least 0"):
        spec.pair_ids(np.array([2**64 - 1], np.uint64), [1], vocabulary=1)
