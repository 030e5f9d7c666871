"""The capped affinity against the conditions of the optimum, a linear program, and words of the paper."""

import numpy as np
import pytest
from scipy.optimize import linprog

from moespec.spec import capped_affinity, expert_choice, softmax_affinity

RANDOM = np.random.default_rng(0)


def scores(tokens, experts, spread=2.0):
    return softmax_affinity(spread * RANDOM.normal(size=(tokens, experts)))


@pytest.mark.parametrize(
    ("tokens", "experts", "capacity", "cap"), [(8, 3, 4, 2), (12, 4, 5, 2), (6, 2, 4, 2), (10, 5, 4, 3)]
)
def test_it_is_the_optimum(tokens, experts, capacity, cap):
    """`log A = S / lambda + g[e] - f[t] - h[t, e]`, where f and h are 0 unless their bound is met (Karush, Kuhn, Tucker)."""
    S = scores(tokens, experts)
    A = capped_affinity(S, capacity=capacity, cap=cap, regularization=0.2, iterations=3000)
    np.testing.assert_allclose(A.sum(axis=0), capacity, atol=1e-9)
    assert A.sum(axis=1).max() <= cap + 1e-9
    assert A.max() <= 1
    rest = np.log(A) - S / 0.2
    free = (A < 1 - 1e-9) & (A.sum(axis=1, keepdims=True) < cap - 1e-9)
    for e in range(experts):
        g = rest[free[:, e], e]
        assert np.ptp(g) < 1e-6
    for t in range(tokens):
        inside = A[t] < 1 - 1e-9
        columns = [e for e in range(experts) if inside[e] and free[:, e].any()]
        f = [rest[free[:, e], e].mean() - rest[t, e] for e in columns]
        assert not f or (min(f) > -1e-6 and np.ptp(f) < 1e-6)


def test_with_little_entropy_it_is_the_linear_program():
    S = scores(6, 3)
    A = capped_affinity(S, capacity=4, cap=2, regularization=0.02, iterations=20000)
    columns = [[float(e == column) for _ in range(6) for e in range(3)] for column in range(3)]
    rows = [[float(t == row) for t in range(6) for _ in range(3)] for row in range(6)]
    best = linprog(-S.ravel(), A_ub=rows, b_ub=[2.0] * 6, A_eq=columns, b_eq=[4.0] * 3, bounds=(0, 1))
    assert np.sum(A * S) == pytest.approx(-best.fun, abs=0.05)
    np.testing.assert_allclose(A.sum(axis=1), 2, atol=1e-3)  # iterations approach it slowly


def test_fewer_tokens_have_more_experts_than_the_cap():
    S = scores(128, 8)
    free = (expert_choice(S, capacity=32).dispatch.sum(axis=(1, 2)) > 2).mean()
    A = capped_affinity(S, capacity=32, cap=2, regularization=0.01)
    capped = (expert_choice(A, capacity=32).dispatch.sum(axis=(1, 2)) > 2).mean()
    assert capped < 0.5 * free


def test_it_only_selects():
    assert not np.iscomplexobj(capped_affinity(scores(4, 2) + 1e-30j, capacity=2, cap=1))
