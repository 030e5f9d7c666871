"""Sparsity-constrained transport: projections by enumeration, how the duals are related, and the solvers by certificates."""

import itertools

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from properties import holds
from scipy.optimize import linear_sum_assignment
from strategies import grid, one_of, orders, seeds, slots, spread_slots

from moespec.spec import softmax_affinity, sparse_transport_affinity, transport_semi_dual
from moespec.spec.algorithms.transport_solvers import Problem, evaluate, solve_adam, solve_lbfgs
from moespec.spec.examples import LOGITS

UTILITY = softmax_affinity(LOGITS)
RANDOM = np.random.default_rng(0)


def rows():
    """(rows, n) on a grid, and how many may be non-zero."""
    sizes = st.sampled_from([1, 2, 4, 5])
    return sizes.flatmap(lambda n: st.tuples(grid(3, n), st.integers(1, n)))


def objective(plan, utility, gamma=1.0):
    """What the plan minimises: `gamma / 2 |P|^2 - <P, U>`, for each group."""
    return np.sum(gamma / 2 * plan**2 - plan * utility, axis=(-2, -1))


def projection(values, nonzeros, mass):
    """The best over all supports, the first of equals: on a support, the orthogonal projection on its affine hull."""
    best, winner = np.inf, None
    for size in range(1, nonzeros + 1):
        for support in map(list, itertools.combinations(range(len(values)), size)):
            p = np.zeros(len(values))
            p[support] = values[support] - (values[support].sum() - mass) / size
            distance = np.sum((p - values) ** 2)
            if (p >= 0).all() and distance < best - 1e-12:
                best, winner = distance, p
    return winner


@holds(wrong="ties_to_the_higher_index", problem=rows(),
       mass=one_of(2.5, 1.0, 0.3))  # fmt: skip
def test_projections_are_closest_to_the_values(B, problem, mass):
    """Of points of the simplex, and of those with k non-zeros. Of equal values the lower index is kept."""
    values, nonzeros = problem
    for count in (nonzeros, values.shape[1]):
        expected = [projection(row, count, mass) for row in values]
        np.testing.assert_allclose(B.project_sparse_simplex(values, nonzeros=count, mass=mass), expected, atol=1e-12)
    np.testing.assert_allclose(B.project_simplex(values, mass=mass), expected, atol=1e-12)


@holds(wrong="dual_without_cardinality", problem=spread_slots, seed=seeds, gamma=one_of(0.25, 1.0))
def test_the_maximum_of_the_dual_over_experts_is_the_semi_dual(B, problem, seed, gamma):
    options = {"capacity": problem.capacity, "regularization": gamma}
    random, u = np.random.default_rng(seed), B.softmax_affinity(problem.scores)
    alpha, beta = random.normal(size=(2, problem.tokens)), random.normal(size=(2, problem.experts))
    semi = B.transport_semi_dual(alpha, u, **options)
    assert (B.transport_dual(alpha, beta, u, **options).value <= semi.value + 1e-11).all()
    best = np.where(semi.plan > 0, gamma * semi.plan - alpha[:, :, None] - u, -np.inf).max(axis=1)
    np.testing.assert_allclose(B.transport_dual(alpha, best, u, **options).value, semi.value, rtol=1e-10, atol=1e-10)


def best_assignments(utility):
    """Each token to one expert, T / E tokens to each, with the largest total utility."""
    plans = np.zeros_like(utility)
    for plan, u in zip(plans, utility, strict=True):
        each = len(u) // u.shape[1]
        token, place = linear_sum_assignment(np.repeat(u, each, axis=1), maximize=True)
        plan[token, place // each] = 1
    return plans


@holds(wrong="no_sparsity", problem=slots)
def test_with_one_token_per_slot_a_plan_is_an_assignment(B, problem):
    """With k = T / E the feasible plans are the balanced 0/1 assignments: where rows sum to 1, it is the best of them."""
    assume(problem.tokens % problem.experts == 0)
    u = B.softmax_affinity(problem.scores)
    plans = B.sparse_transport_affinity(u, capacity=problem.tokens // problem.experts, solver="lbfgs")
    best = objective(best_assignments(u), u)
    feasible = np.abs(plans.sum(axis=2) - 1).max(axis=1) < 1e-7
    np.testing.assert_allclose(objective(plans, u)[feasible], best[feasible], atol=1e-6)
    assert set(np.unique(np.round(plans[feasible], 6))) <= {0, 1}


@holds(wrong=("rows_are_sparse", "columns_are_sparse"), problem=slots, seed=seeds)
def test_the_plan_of_the_solver_has_exact_and_sparse_columns_or_rows(B, problem, seed):
    """Without sparsity the capacity is all tokens. Permuted tokens and experts permute the plan, where no entries are equal."""
    u, mass = np.random.default_rng(seed).random(problem.scores.shape), problem.tokens / problem.experts
    columns = B.sparse_transport_affinity(u, capacity=problem.capacity)
    rows = B.sparse_transport_affinity(u, capacity=problem.choices, sparsity="token")
    free = B.sparse_transport_affinity(u, capacity=problem.capacity, sparsity="none")
    np.testing.assert_allclose(free, B.sparse_transport_affinity(u, capacity=problem.tokens), atol=1e-13)
    for plan, axis, total, count in ((columns, 1, mass, problem.capacity), (rows, 2, 1, problem.choices)):
        assert (plan >= 0).all()
        np.testing.assert_allclose(plan.sum(axis=axis), total, rtol=1e-12)
        assert (np.count_nonzero(plan, axis=axis) <= count).all()
    tokens, experts = orders(problem.tokens, seed)[..., None], np.random.default_rng(seed).permutation(problem.experts)
    permuted = B.sparse_transport_affinity(
        np.take_along_axis(u, tokens, axis=1)[:, :, experts], capacity=problem.capacity
    )
    np.testing.assert_allclose(permuted, np.take_along_axis(columns, tokens, axis=1)[:, :, experts], atol=1e-9)


@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_quadratic_transport_is_optimal(gamma):
    utility = softmax_affinity(3 * RANDOM.normal(size=(8, 4)))
    plan = sparse_transport_affinity(utility, capacity=1, sparsity="none", solver="lbfgs", regularization=gamma)
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(axis=0), 2.0, atol=1e-12)
    np.testing.assert_allclose(plan.sum(axis=1), 1.0, atol=1e-9)
    alpha = solve_lbfgs(Problem(utility, 1.0, 2.0, 8, gamma))
    gap = transport_semi_dual(alpha, utility, capacity=8, regularization=gamma).value - objective(plan, utility, gamma)
    assert gap == pytest.approx(0, abs=1e-8)  # feasible, and the dual says nothing is better


def test_adam_stops_after_the_update_whose_gradient_was_small():
    utility = np.full((4, 2), 0.5)  # alpha = 0 is optimal: every column spreads its mass evenly
    assert np.array_equal(solve_adam(Problem(utility, 1.0, 2.0, 4, 1.0), 20, 1e-2, 1e-3), np.zeros(4))
    problem = Problem(UTILITY, 1.0, 2.0, 6, 1.0)
    norm = np.linalg.norm(evaluate(np.zeros(6), problem).gradient)
    assert np.array_equal(solve_adam(problem, 20, 1e-2, 1.01 * norm), solve_adam(problem, 1, 1e-2, 1e-3))
    assert not np.array_equal(solve_adam(problem, 20, 1e-2, 0.99 * norm), solve_adam(problem, 1, 1e-2, 1e-3))
