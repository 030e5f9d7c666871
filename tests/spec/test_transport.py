"""Projections, duals and solvers: enumeration of supports, certificates of optimality, brute force."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from moespec.spec import (
    project_simplex,
    project_sparse_simplex,
    softmax_affinity,
    sparse_transport_affinity,
    transport_dual,
    transport_semi_dual,
)
from moespec.spec.examples import LOGITS
from moespec.spec.transport_solvers import Problem, evaluate, solve_adam, solve_lbfgs

UTILITY = softmax_affinity(LOGITS)
RANDOM = np.random.default_rng(0)


def enumerated_projection(values, nonzeros, mass):
    """The best projection over all supports: on a support, the orthogonal projection on its affine hull."""
    best, winner = np.inf, None
    for size in range(1, nonzeros + 1):
        for support in itertools.combinations(range(len(values)), size):
            p = np.zeros(len(values))
            p[list(support)] = values[list(support)] - (values[list(support)].sum() - mass) / size
            distance = np.sum((p - values) ** 2)
            if (p >= 0).all() and distance < best - 1e-14:
                best, winner = distance, p
    return winner


@pytest.mark.parametrize("seed", range(8))
def test_projections_by_enumeration(seed):
    values = np.random.default_rng(seed).normal(size=5)
    for mass in (0.3, 1.0, 4.0):
        for nonzeros in range(1, 6):
            projected = project_sparse_simplex(values, nonzeros=nonzeros, mass=mass)
            np.testing.assert_allclose(projected, enumerated_projection(values, nonzeros, mass), atol=1e-13)
        np.testing.assert_allclose(
            project_simplex(values, mass=mass), enumerated_projection(values, 5, mass), atol=1e-13
        )


def test_projection_of_large_values():
    np.testing.assert_array_equal(project_simplex([1e20, 1e20, 0.0], mass=1.0), [0.5, 0.5, 0.0])
    np.testing.assert_array_equal(project_simplex([-1e20, -1e20, -3e20], mass=1.0), [0.5, 0.5, 0.0])


def conjugate(x, nonzeros, mass, gamma):
    """The closed form by the threshold: `sum_i max(x[i] - tau, 0) = gamma mass` over the largest entries."""
    largest = np.sort(x)[::-1][:nonzeros]
    low, high = largest[-1] - gamma * mass, largest[0]
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(largest - tau, 0).sum() > gamma * mass else (low, tau)
    return np.sum(np.where(largest >= tau, largest**2 - tau**2, 0)) / (2 * gamma)


@pytest.mark.parametrize("nonzeros", [1, 2, 4, 6])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_semi_dual_in_closed_form(nonzeros, gamma):
    alpha = RANDOM.normal(size=6) / 3
    value, gradient, plan = transport_semi_dual(alpha, UTILITY, capacity=nonzeros, regularization=gamma)
    conjugates = [conjugate(alpha + UTILITY[:, e], nonzeros, 2.0, gamma) for e in range(3)]
    assert value == pytest.approx(alpha.sum() - sum(conjugates), abs=1e-11)
    np.testing.assert_allclose(gradient, 1 - plan.sum(axis=1), atol=1e-15)


@pytest.mark.parametrize("nonzeros", [1, 3, 6])
def test_dual_by_enumeration_of_supports(nonzeros):
    alpha, beta = RANDOM.normal(size=6) / 3, RANDOM.normal(size=3) / 3
    x = alpha[:, None] + beta + UTILITY
    columns = [
        max(sum(max(v, 0) ** 2 for v in s) for s in itertools.combinations(x[:, e].tolist(), nonzeros))
        for e in range(3)
    ]
    dual = transport_dual(alpha, beta, UTILITY, capacity=nonzeros, regularization=0.7)
    assert dual.value == pytest.approx(alpha.sum() + 2 * beta.sum() - sum(columns) / 1.4, abs=1e-13)
    np.testing.assert_allclose(dual.expert_gradient, 2 - dual.plan.sum(axis=0), atol=1e-15)
    np.testing.assert_allclose(dual.token_gradient, 1 - dual.plan.sum(axis=1), atol=1e-15)


def objective(plan, utility, gamma=1.0):
    return np.sum(plan * utility) - gamma / 2 * np.sum(plan**2)


@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_quadratic_transport_is_optimal(gamma):
    utility = softmax_affinity(3 * RANDOM.normal(size=(8, 4)))
    plan = sparse_transport_affinity(utility, capacity=1, sparsity="none", solver="lbfgs", regularization=gamma)
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(axis=0), 2.0, atol=1e-12)
    np.testing.assert_allclose(plan.sum(axis=1), 1.0, atol=1e-9)
    alpha = solve_lbfgs(Problem(utility, 1.0, 2.0, 8, gamma))
    gap = transport_semi_dual(alpha, utility, capacity=8, regularization=gamma).value + objective(plan, utility, gamma)
    assert gap == pytest.approx(0, abs=1e-8)  # feasible, and the dual says nothing is better


def test_quadratic_transport_by_a_general_solver():
    utility = softmax_affinity([[2.0, 0.0], [1.5, 0.0], [1.0, 0.5], [0.0, 0.1]])
    result = minimize(
        lambda p: -objective(p.reshape(4, 2), utility),
        np.full(8, 0.5),
        method="SLSQP",
        bounds=[(0, None)] * 8,
        constraints=[
            {"type": "eq", "fun": lambda p: p.reshape(4, 2).sum(axis=1) - 1},
            {"type": "eq", "fun": lambda p: p.reshape(4, 2).sum(axis=0)[:1] - 2},
        ],
        options={"ftol": 1e-14},
    )
    plan = sparse_transport_affinity(utility, capacity=1, sparsity="none", solver="lbfgs")
    np.testing.assert_allclose(plan, result.x.reshape(4, 2), atol=1e-6)


def test_lbfgs_goes_further_than_adam():
    for nonzeros in (2, 3, 6):
        problem = Problem(UTILITY, 1.0, 2.0, nonzeros, 1.0)
        adam, lbfgs = solve_adam(problem, 20, 1e-2, 1e-3), solve_lbfgs(problem)
        assert evaluate(lbfgs, problem).value >= evaluate(adam, problem).value
    problem = Problem(UTILITY, 1.0, 2.0, 2, 1.0)
    assert evaluate(solve_lbfgs(problem), problem).value > evaluate(solve_adam(problem, 20, 1e-2, 1e-3), problem).value


def test_adam_with_many_steps_reaches_the_quadratic_optimum():
    problem = Problem(UTILITY, 1.0, 2.0, 6, 1.0)
    alpha = solve_adam(problem, 3000, 1e-2, 1e-9)
    assert evaluate(alpha, problem).value == pytest.approx(-1.4033441989882365, abs=1e-9)


def test_adam_stops_after_the_update_whose_gradient_was_small():
    utility = np.full((4, 2), 0.5)  # alpha = 0 is optimal: every column spreads its mass evenly
    assert np.array_equal(solve_adam(Problem(utility, 1.0, 2.0, 4, 1.0), 20, 1e-2, 1e-3), np.zeros(4))
    problem = Problem(UTILITY, 1.0, 2.0, 6, 1.0)
    norm = np.linalg.norm(evaluate(np.zeros(6), problem).gradient)
    assert np.array_equal(solve_adam(problem, 20, 1e-2, 1.01 * norm), solve_adam(problem, 1, 1e-2, 1e-3))
    assert not np.array_equal(solve_adam(problem, 20, 1e-2, 0.99 * norm), solve_adam(problem, 1, 1e-2, 1e-3))


def test_first_step_of_adam_has_the_length_of_the_learning_rate():
    problem = Problem(UTILITY, 1.0, 2.0, 2, 1.0)
    step = solve_adam(problem, 1, 1e-2, 1e-3)
    np.testing.assert_allclose(step, 1e-2 * np.sign(evaluate(np.zeros(6), problem).gradient), rtol=1e-6)


def test_options_reach_the_solver():
    reference = sparse_transport_affinity(UTILITY, capacity=2)
    for option in ({"steps": 5}, {"learning_rate": 0.1}, {"regularization": 0.1}, {"tolerance": 10.0}):
        assert not np.allclose(sparse_transport_affinity(UTILITY, capacity=2, **option), reference)


def test_sparsity_none_ignores_the_capacity():
    np.testing.assert_array_equal(
        sparse_transport_affinity(UTILITY, capacity=99, sparsity="none"), sparse_transport_affinity(UTILITY, capacity=6)
    )


def test_row_sparse_transport_exchanges_tokens_and_experts():
    plan = sparse_transport_affinity(UTILITY, capacity=2, sparsity="token")
    np.testing.assert_allclose(plan.sum(axis=1), 1, atol=1e-12)
    assert (np.count_nonzero(plan, axis=1) <= 2).all()
    # The transposed problem has rows of mass T / E = 2 and columns of mass 1: half of it is a problem of ours.
    scaled = sparse_transport_affinity(UTILITY.T, capacity=2, regularization=2.0, learning_rate=1e-2, tolerance=5e-4)
    np.testing.assert_allclose(plan, 2 * scaled.T, atol=1e-8)


def test_a_peaked_utility_leaves_zeros_in_a_column():
    utility = softmax_affinity(12 * RANDOM.normal(size=(12, 3)))
    plan = sparse_transport_affinity(utility, capacity=8)
    assert (np.count_nonzero(plan, axis=0) < 8).any()
    np.testing.assert_allclose(plan.sum(axis=0), 4, atol=1e-12)


def test_the_plan_carries_no_gradient():
    plan = sparse_transport_affinity(UTILITY + 1e-30j, capacity=2)
    assert plan.dtype == np.float64
    np.testing.assert_array_equal(plan, sparse_transport_affinity(UTILITY, capacity=2))
