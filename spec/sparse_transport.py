"""Sparsity-constrained optimal transport: a plan in which each expert receives from at most k tokens.

    maximise  <P, U> - gamma / 2 |P|^2   over P >= 0 with row sums 1, column sums T / E, at most k non-zeros a column

Ambiguity ledger

ST-1: How far is the semi-dual solved?
    Reading: 20 updates of Adam with learning rate 0.01 from 0, or until the gradient norm is at most 0.001.
    Alternatives: to convergence (`solver="lbfgs"`).
ST-2: What is the utility?
    Reading: the softmax of the logits.
    Alternatives: the logits.
ST-3: Does the plan carry a gradient?
    Reading: no; it only selects.
    Alternatives: through the unrolled updates; by implicit differentiation at the optimum.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from moespec.spec.checks import as_array, check_at_least, check_capacity, check_option, check_positive, check_size
from moespec.spec.numerics import Array, positive_part, stable_order, stop_gradient

__all__ = [
    "Dual",
    "SemiDual",
    "project_simplex",
    "project_sparse_simplex",
    "sparse_transport_affinity",
    "transport_dual",
    "transport_semi_dual",
]


class SemiDual(NamedTuple):
    """Value (a number), gradient (tokens,) and plan (tokens, experts) of the semi-dual at a potential."""

    value: Array
    gradient: Array
    plan: Array


class Dual(NamedTuple):
    """Value (a number), gradients (tokens,) and (experts,), and plan (tokens, experts) of the dual at two potentials."""

    value: Array
    token_gradient: Array
    expert_gradient: Array
    plan: Array


def project_simplex(values: ArrayLike, *, mass: float = 1.0) -> Array:
    """The closest `p >= 0` with `sum(p) = mass`.

    Args:
        values: (n,).
        mass: greater than 0.

    Returns:
        (n,): `max(v - tau, 0)` with tau such that the sum is `mass`.

    Source: Held et al. 1974. Section 8.2.

    >>> project_simplex([0.9, 0.2, 0.5, 0.45]).round(4).tolist()
    [0.6167, 0.0, 0.2167, 0.1667]
    """
    values = as_array("values", values, "n")
    check_positive("mass", mass)
    return _project(values, mass)


def project_sparse_simplex(values: ArrayLike, *, nonzeros: int, mass: float = 1.0) -> Array:
    """The closest `p >= 0` with `sum(p) = mass` and at most `nonzeros` entries that are not 0.

    Keeps the `nonzeros` largest values (the lower index among equals), projects them on the simplex, zeroes the rest.

    Args:
        values: (n,).
        nonzeros: from 1 to n.
        mass: greater than 0.

    Source: SparseOT (arXiv 2209.15466). Section 8.2.

    >>> project_sparse_simplex([0.9, 0.2, 0.5, 0.45], nonzeros=2).round(4).tolist()
    [0.7, 0.0, 0.3, 0.0]
    """
    values = as_array("values", values, "n")
    check_capacity(nonzeros, len(values), name="nonzeros", of="values")
    check_positive("mass", mass)
    return _project_sparse(values, nonzeros, mass)


def _project(values: Array, mass: float) -> Array:
    descending = values[stable_order(values)]
    excess = (np.cumsum(descending) - mass) / np.arange(1, len(values) + 1)
    support = np.flatnonzero((descending - excess).real > 0)[-1]
    return positive_part(values - excess[support])


def _project_sparse(values: Array, nonzeros: int, mass: float) -> Array:
    kept = stable_order(values)[:nonzeros]
    projected = np.zeros_like(values)
    projected[kept] = _project(values[kept], mass)
    return projected


def transport_semi_dual(
    potential: ArrayLike, utility: ArrayLike, *, capacity: int, regularization: float = 1.0
) -> SemiDual:
    """The semi-dual `s(alpha) = sum(alpha) - sum_e conj(alpha + U[:, e])`, its gradient `1 - sum_e P[:, e]`, and P.

    `conj(x) = max <x, p> - gamma / 2 |p|^2` over `p >= 0` with sum `T / E` and at most `capacity` non-zeros; the
    maximiser, the projection of `x / gamma`, is the column `P[:, e]`. Column sums and sparsity hold for every alpha.

    Args:
        potential: alpha, (tokens,).
        utility: U, (tokens, experts).
        capacity: k, from 1 to tokens.
        regularization: gamma, greater than 0.

    Source: Routers, eq. (9); SparseOT, section 4. Section 8.3.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> float(transport_semi_dual(np.zeros(6), softmax_affinity(LOGITS), capacity=2).value.round(12))
    -0.568453162979
    """
    potential = as_array("potential", potential, "tokens")
    utility = as_array("utility", utility, "tokens experts")
    tokens, experts = utility.shape
    check_size("potential", potential, 0, tokens, "the tokens of utility")
    check_capacity(capacity, tokens)
    check_positive("regularization", regularization)
    return _semi_dual(potential, utility, 1.0, tokens / experts, capacity, regularization)


def _semi_dual(
    alpha: Array, utility: Array, row_mass: float, column_mass: float, nonzeros: int, gamma: float
) -> SemiDual:
    """The semi-dual for rows of mass `row_mass` and columns of mass `column_mass`."""
    shifted = alpha[:, None] + utility
    plan = np.zeros_like(shifted)
    value = row_mass * np.sum(alpha)
    for column in range(utility.shape[1]):
        x = shifted[:, column]
        p = _project_sparse(x / gamma, nonzeros, column_mass)
        plan[:, column] = p
        value = value - (np.sum(x * p) - 0.5 * gamma * np.sum(p * p))
    return SemiDual(value, row_mass - plan.sum(axis=1), plan)


def transport_dual(
    token_potential: ArrayLike,
    expert_potential: ArrayLike,
    utility: ArrayLike,
    *,
    capacity: int,
    regularization: float = 1.0,
) -> Dual:
    """The dual

        sum(alpha) + T / E sum(beta) - 1 / (2 gamma) sum_e sum_{i <= k} max(x_e[i], 0)^2,   x_e = alpha + beta[e] + U[:, e]

    where `x_e[i]` is the i-th largest entry; its gradients `1 - P 1` and `T / E - P^T 1`, and its plan P, which is
    `max(x_e, 0) / gamma` on the k largest entries of column e.

    Args:
        token_potential: alpha, (tokens,).
        expert_potential: beta, (experts,).
        utility: U, (tokens, experts).
        capacity: k, from 1 to tokens.
        regularization: gamma, greater than 0.

    Source: SparseOT, section 4. Section 8.4.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> dual = transport_dual(np.full(6, 0.5), np.full(3, 0.25), softmax_affinity(LOGITS), capacity=2)
    >>> float(dual.value.round(12))
    -0.985234634441
    """
    alpha = as_array("token_potential", token_potential, "tokens")
    beta = as_array("expert_potential", expert_potential, "experts")
    utility = as_array("utility", utility, "tokens experts")
    tokens, experts = utility.shape
    check_size("token_potential", alpha, 0, tokens, "the tokens of utility")
    check_size("expert_potential", beta, 0, experts, "the experts of utility")
    check_capacity(capacity, tokens)
    gamma = check_positive("regularization", regularization)
    shifted = alpha[:, None] + beta[None, :] + utility
    plan = np.zeros_like(shifted)
    for expert in range(experts):
        kept = stable_order(shifted[:, expert])[:capacity]
        plan[kept, expert] = positive_part(shifted[kept, expert]) / gamma
    value = np.sum(alpha) + tokens / experts * np.sum(beta) - 0.5 * gamma * np.sum(plan * plan)
    return Dual(value, 1.0 - plan.sum(axis=1), tokens / experts - plan.sum(axis=0), plan)


def sparse_transport_affinity(
    utility: ArrayLike,
    *,
    capacity: int,
    solver: str = "adam",
    sparsity: str = "expert",
    steps: int = 20,
    learning_rate: float = 1e-2,
    tolerance: float = 1e-3,
    regularization: float = 1.0,
) -> Array:
    """The plan of the semi-dual at the potential that a solver reaches. It carries no gradient.

    Args:
        utility: (tokens, experts), the softmax of the logits.
        capacity: k, the non-zeros of a column (or, with `sparsity="token"`, the choices of a row).
        solver: "adam", the reference, which stays far from the optimum on purpose; "lbfgs", accurate.
        sparsity: "expert" (columns have at most k non-zeros), "token" (rows have), "none" (quadratic regularisation
            only; `capacity` is ignored).
        steps, learning_rate, tolerance: of Adam; it stops after an update whose gradient had at most this norm.
        regularization: gamma, greater than 0.

    Returns:
        (tokens, experts). Column sums are T / E exactly, row sums approximately 1 (the reverse for "token").

    Source: Routers, eq. (9); SparseOT; the code of V-MoE. Sections 8.3, 8.5, 8.6.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> sparse_transport_affinity(softmax_affinity(LOGITS), capacity=2)[:, 0].round(10).tolist()
    [0.0, 0.9964493204, 0.0, 0.0, 1.0035506796, 0.0]
    """
    utility = stop_gradient(as_array("utility", utility, "tokens experts"))
    check_option("solver", solver, ("adam", "lbfgs"))
    check_option("sparsity", sparsity, ("expert", "token", "none"))
    check_at_least("steps", steps, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("tolerance", tolerance)
    gamma = check_positive("regularization", regularization)
    tokens, experts = utility.shape
    if sparsity == "token":
        check_capacity(capacity, experts, of="experts")
        problem = _Problem(utility.T, tokens / experts, 1.0, capacity, gamma)
    else:
        nonzeros = tokens if sparsity == "none" else check_capacity(capacity, tokens)
        problem = _Problem(utility, 1.0, tokens / experts, nonzeros, gamma)
    alpha = _lbfgs(problem) if solver == "lbfgs" else _adam(problem, steps, learning_rate, tolerance)
    plan = _semi_dual(alpha, *problem).plan
    return plan.T if sparsity == "token" else plan


class _Problem(NamedTuple):
    """The arguments of `_semi_dual` after the potential."""

    utility: Array
    row_mass: float
    column_mass: float
    nonzeros: int
    gamma: float


def _adam(problem: _Problem, steps: int, learning_rate: float, tolerance: float) -> Array:
    """Adam on the negative semi-dual from 0, with b1 = 0.9, b2 = 0.999, epsilon = 1e-8 outside the root."""
    alpha = np.zeros(len(problem.utility))
    first = np.zeros_like(alpha)
    second = np.zeros_like(alpha)
    for step in range(1, steps + 1):
        gradient = -_semi_dual(alpha, *problem).gradient
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        mean = first / (1 - 0.9**step)
        mean_square = second / (1 - 0.999**step)
        alpha = alpha - learning_rate * mean / (np.sqrt(mean_square) + 1e-8)
        if np.sqrt(np.sum(gradient * gradient)) <= tolerance:
            break
    return alpha


def _lbfgs(problem: _Problem) -> Array:
    """L-BFGS-B on the negative semi-dual from 0, until no coordinate of the gradient exceeds 1e-10."""

    def negative(alpha: Array) -> tuple[float, Array]:
        value, gradient, _ = _semi_dual(alpha, *problem)
        return -float(value), -gradient

    options = {"maxiter": 500, "maxfun": 5000, "gtol": 1e-10, "ftol": 0.0}
    return np.asarray(
        minimize(negative, np.zeros(len(problem.utility)), jac=True, method="L-BFGS-B", options=options).x
    )
