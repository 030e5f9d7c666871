"""Hierarchical gating against eqs. (12)-(14) of Shazeer et al. 2017, sum by sum."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from moespec import spec
from moespec.spec import ROUTERS


def top(values, k):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def gate(noisy, k):
    """G(x) = Softmax(KeepTopK(H(x), k)): eqs. (3) and (5)."""
    best = top(noisy, k)
    total = sum(math.exp(noisy[i]) for i in best)
    return [math.exp(noisy[i]) / total if i in best else 0.0 for i in range(len(noisy))]


def load(clean, scale, noisy, k):
    """Load(X), the sum of P(x, i): eqs. (8)-(10); where every expert is chosen its probability is 1."""
    n = len(clean[0])
    total = [0.0] * n
    for x in range(len(clean)):
        for i in range(n):
            others = sorted((noisy[x][j] for j in range(n) if j != i), reverse=True)
            std = math.log1p(math.exp(scale[x][i]))
            total[i] += norm.cdf((clean[x][i] - others[k - 1]) / std) if k < n else 1.0
    return total


def literal(clean, scale, noisy, a, b, k):
    """G_primary(x)_i G_i(x)_j, and CV^2 of Importance_H and Load_H: eqs. (12), (13) and (14)."""
    count, upper, lower = len(clean), min(k, a), min(k, b)

    def secondary(array, x, i):
        return array[x][a + i * b : a + (i + 1) * b]

    gates = [[0.0] * (a * b) for _ in range(count)]
    reached = [[] for _ in range(a)]  # X^(i): the examples for which G_primary(x)_i > 0
    for x in range(count):
        primary = gate(noisy[x][:a], upper)
        for i in range(a):
            if primary[i] > 0:
                reached[i].append(x)
            for j, inner in enumerate(gate(secondary(noisy, x, i), lower)):
                gates[x][i * b + j] = primary[i] * inner
    importance = [sum(gates[x][e] for x in range(count)) for e in range(a * b)]
    primary_load = load(*([row[:a] for row in array] for array in (clean, scale, noisy)), upper)
    loads = []
    for i in range(a):
        parts = ([secondary(array, x, i) for x in reached[i]] for array in (clean, scale, noisy))
        within = load(*parts, lower) if reached[i] else [0.0] * b
        loads += [primary_load[i] * within[j] / len(reached[i]) if reached[i] else 0.0 for j in range(b)]
    return gates, *((np.std(total) / np.mean(total)) ** 2 for total in (importance, loads))


@pytest.mark.parametrize("seed", range(300))
def test_the_words_of_the_paper(seed):
    random = np.random.default_rng(seed)
    count, a, b, k = (int(n) for n in random.integers(1, [9, 5, 5, 4]))
    width, columns = 3, a + a * b
    x, noise = random.normal(size=(count, width)), random.normal(size=(count, columns))
    params = {name: random.normal(size=(width, columns)) for name in ("kernel", "noise_kernel")}
    clean, scale = x @ params["kernel"], x @ params["noise_kernel"]
    noisy = clean + noise * np.log1p(np.exp(scale))
    gates, importance, loads = literal(clean, scale, noisy, a, b, k)
    np.testing.assert_allclose(spec.hierarchical_affinity(noisy, branches=a, choices=k), gates, rtol=1e-12)
    loss = spec.hierarchical_load_loss(clean, scale, noisy, branches=a, choices=k)
    assert loss == pytest.approx(loads, rel=1e-10, abs=1e-14)

    router = ROUTERS["hierarchical_top_k"]
    options = router.options(width=width, experts=a * b, tokens=count, branches=a, choices_per_level=k)
    assert router.noise(options).shape == noise.shape
    output = router.route(params, x, options, noise=noise, train=True)
    np.testing.assert_allclose(output.routing.combine.sum(axis=2), gates, rtol=1e-12)
    np.testing.assert_array_equal(output.routing.dispatch.sum(axis=2) > 0, np.array(gates) > 0)
    assert output.losses == pytest.approx({"importance": 0.1 * importance, "load": 0.1 * loads}, rel=1e-9, abs=1e-13)
    assert list(router.route(params, x, options).losses) == ["importance"]


@pytest.mark.parametrize(
    ("experts", "branches"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (8, 2), (9, 3), (16, 4), (32, 4), (7, 1)]
)
def test_branches_by_default(experts, branches):
    assert ROUTERS["hierarchical_top_k"].options(width=3, experts=experts, tokens=6).levels[0] == branches
