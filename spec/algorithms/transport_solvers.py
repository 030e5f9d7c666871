"""Solvers for the duals of sparsity-constrained transport: Adam (the reference) and L-BFGS."""

from typing import NamedTuple

import numpy as np

from moespec.spec.algorithms.transport_duals import SemiDual, dual, semi_dual
from moespec.spec.numerics import Array


class Problem(NamedTuple):
    """A transport problem. Columns of the plan have mass `column_mass` and at most `nonzeros` non-zeros. Rows have mass `row_mass`."""

    utility: Array
    row_mass: float
    column_mass: float
    nonzeros: int
    gamma: float
    objective: str = "semi_dual"


def evaluate(potential: Array, problem: Problem) -> SemiDual:
    """Evaluates the objective. `potential` holds the row potentials and, if the objective is the dual, also the column potentials."""
    utility, row_mass, column_mass, nonzeros, gamma, objective = problem
    if objective == "semi_dual":
        return semi_dual(potential, utility, row_mass, column_mass, nonzeros, gamma)
    alpha, beta = np.split(potential, [len(utility)])
    value, of_rows, of_columns, plan = dual(alpha, beta, utility, row_mass, column_mass, nonzeros, gamma)
    return SemiDual(value, np.concatenate([of_rows, of_columns]), plan)


def start(problem: Problem) -> Array:
    """Returns the initial potential, an array of zeros."""
    rows, columns = problem.utility.shape
    return np.zeros(rows if problem.objective == "semi_dual" else rows + columns)


def solve_adam(problem: Problem, steps: int, learning_rate: float, tolerance: float) -> Array:
    """Minimises the negative objective with Adam, starting at 0 (b1 = 0.9, b2 = 0.999, epsilon = 1e-8 outside the square root).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> solve_adam(Problem(softmax_affinity(LOGITS), 1.0, 2.0, 2, 1.0), 20, 1e-2, 1e-3).round(10).tolist()
    [0.0909952994, 0.0548666122, -0.0657284253, -0.1941715286, -0.0457020387, -0.1952661411]
    """
    potential = start(problem)
    first = np.zeros_like(potential)
    second = np.zeros_like(potential)
    for step in range(1, steps + 1):
        gradient = -evaluate(potential, problem).gradient
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        mean = first / (1 - 0.9**step)
        mean_square = second / (1 - 0.999**step)
        potential = potential - learning_rate * mean / (np.sqrt(mean_square) + 1e-8)
        if np.sqrt(np.sum(gradient * gradient)) <= tolerance:
            break
    return potential


def solve_lbfgs(problem: Problem) -> Array:
    """Minimises the negative objective with L-BFGS-B, starting at 0.

    Stops when no gradient entry exceeds 1e-10, when no step in double precision improves the objective, or after 500
    iterations. If all plan entries may be non-zero, the problem is convex. The entries of the final gradient are then at most
    about 1e-6 (measured on 60 random problems). Otherwise, the maximum can lie at a kink, where the gradient jumps
    across 0. The row and column sums of the plan then differ from the required sums by the entries of the gradient.

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> quadratic = Problem(softmax_affinity(LOGITS), 1.0, 2.0, 6, 1.0)
    >>> reached = evaluate(solve_lbfgs(quadratic), quadratic)
    >>> round(float(reached.value), 12), bool(np.abs(reached.gradient).max() < 1e-6)
    (-1.403344198988, True)
    """

    from scipy.optimize import minimize  # imported here because the import is slow

    def negative(potential: Array) -> tuple[float, Array]:
        value, gradient, _ = evaluate(potential, problem)
        return -float(value), -gradient

    result = minimize(
        negative, start(problem), jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-10, "ftol": 0.0}
    )
    return np.asarray(result.x)
