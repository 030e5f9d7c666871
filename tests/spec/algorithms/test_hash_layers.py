"""Hash layers: tables against searches and SciPy, MultiHash segment by segment, ids beyond 64 bits."""

import itertools

import numpy as np
import pytest
from properties import holds
from router_inputs import perceptrons
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist
from strategies import one_of, seeds

from moespec import spec

SEEDS = range(20)
GROUPS, T, V, E, D, H = 2, 6, 5, 3, 4, 6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("iterations", [1, 2, 5, 25])
@pytest.mark.filterwarnings("ignore:One of the clusters is empty")  # which then keeps its centroid there, too
def test_k_means_is_that_of_scipy(seed, iterations):
    """The same centroids; SciPy's labels are those before the last update, ours the nearest of what is returned."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((60, 3)) + 4 * random.integers(0, 3, (60, 1))
    start = points[random.choice(60, 5, replace=False)]
    ours = spec.k_means(points, start, iterations=iterations)
    theirs, labels = kmeans2(points, start, iter=iterations, minit="matrix", missing="warn")
    np.testing.assert_allclose(ours.centroids, theirs, atol=1e-12)
    np.testing.assert_array_equal(ours.clusters, cdist(points, ours.centroids).argmin(axis=1))
    if iterations == 25:  # settled
        np.testing.assert_array_equal(ours.clusters, labels)


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
        counts = [[[table[id] for id in group].count(e) for e in range(experts)] for group in groups]
        return all(max(each) - min(each) <= 1 for each in counts)

    def distance(table):
        return [(table[id] - n) % experts for n, id in enumerate(walk)]

    best = min((table for table in itertools.product(range(experts), repeat=5) if even(table)), key=distance)
    assert tuple(spec.hash_table_dispersed(np.array(clusters), experts=experts)) == best


@holds(wrong="balanced_in_order", seed=seeds)
def test_a_balanced_table_is_nearly_even(B, seed):
    """The largest load is at most the mean and the largest frequency, and at most 4/3 of the smallest possible one; ids of
    distinct frequency may come in any order."""
    random = np.random.default_rng(seed)
    frequencies = random.permutation(19)[:8] + 1.0
    table = B.hash_table_balanced(frequencies, experts=E)
    loads = np.bincount(table, weights=frequencies, minlength=E)
    assert loads.max() <= frequencies.mean() * 8 / E + frequencies.max()
    every = np.array(np.meshgrid(*[range(E)] * 8)).reshape(8, -1).T
    worst = np.max([(every == e) @ frequencies for e in range(E)], axis=0)
    assert loads.max() <= 4 / 3 * worst.min() + 1e-9
    order = random.permutation(8)
    np.testing.assert_array_equal(B.hash_table_balanced(frequencies[order], experts=E), table[order])


@holds(wrong="segments_without_biases", seed=seeds, hashes=one_of(1, 2))
def test_multi_hash_segment_by_segment(B, seed, hashes):
    """Hidden unit j and output j are those of the expert of the hash of their segment."""
    random = np.random.default_rng(seed)
    x, ids = random.normal(size=(GROUPS, T, D)), random.integers(0, V, (GROUPS, T), dtype=np.int32)
    tables = random.integers(0, E, (hashes, V), dtype=np.int32)
    params = perceptrons(lambda *shape: random.normal(size=shape), E, D, H)
    expected = np.zeros(x.shape)
    for place in np.ndindex(ids.shape):
        expert = tables[:, ids[place]]
        hidden, out = np.repeat(expert, H // hashes), np.repeat(expert, D // hashes)
        u = [max(0.0, x[place] @ params["w1"][e, :, j] + params["b1"][e, j]) for j, e in enumerate(hidden)]
        expected[place] = [np.dot(u, params["w2"][e, :, j]) + params["b2"][e, j] for j, e in enumerate(out)]
    np.testing.assert_allclose(B.multi_hash_mlp(x, ids, tables, params), expected, atol=1e-12)


@pytest.mark.parametrize("far", [1e8, 1e12])
def test_k_means_tells_points_apart_far_from_zero(far):
    """The squares of the points cancel there; centring alone would not help in a line with a point at 0."""
    points = np.array([[0.0], [far], [far + 1]])
    assert spec.k_means(points, points).clusters.tolist() == [0, 1, 2]


def test_pairs_beyond_64_bits_are_an_error():
    for first in (2**61, 2**62):
        with pytest.raises(spec.ContractError, match=f"first: {first} times vocabulary=4"):
            spec.pair_ids([first], [0], vocabulary=4)
    assert spec.pair_ids([2**61 - 1], [3], vocabulary=4).tolist() == [2**63 - 1]
    with pytest.raises(spec.ContractError, match="first: expected integers from 0 to"):
        spec.pair_ids(np.array([2**64 - 1], np.uint64), [1], vocabulary=1)


def test_several_experts_of_an_id_weighted_by_live_scores():
    """As DeepseekV4HashRouter: the experts of the id, and the scores of these experts divided by their sum, token by token."""
    random, router = np.random.default_rng(0), spec.ROUTERS["hash"]
    more = {"choices": 2, "affinity": "sigmoid", "normalize_selected": True, "scale": 1.5}
    options = router.options(width=D, experts=E, tokens=T, ids=V, **more)
    params = router.init(random, options)
    assert params["tables"].shape == (2, V)
    assert (params["tables"][0] != params["tables"][1]).all()
    tokens, ids = random.standard_normal((T, D)), random.integers(0, V, T)
    combine = router.route(params, tokens, options, ids=ids).routing.combine.sum(axis=2)
    for token, id, weights in zip(tokens, ids, combine, strict=True):
        chosen = params["tables"][:, id].astype(int)
        scores = 1 / (1 + np.exp(-token @ params["kernel"][:, chosen]))
        np.testing.assert_allclose(weights[chosen], 1.5 * scores / scores.sum())
        assert np.count_nonzero(weights) == 2


@pytest.mark.parametrize("given", [{"choices": 2}, {"scale": 2.0}, {"affinity": "sigmoid", "hashes": 2}])
def test_live_weights_need_an_affinity_and_one_hash(given):
    with pytest.raises(spec.ConfigError, match=f"^{next(iter(given))}="):
        spec.ROUTERS["hash"].options(width=D, experts=E, tokens=T, **given)
