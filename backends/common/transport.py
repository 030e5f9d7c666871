"""Sparsity-constrained optimal transport: projections, the dual and semi-dual objectives, and the Adam solver.

Inside this module, the last axis of a plan contains the entries of one column, so one call finds the largest entries of all columns.
"""

from typing import Generic, NamedTuple

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.transport_duals import Dual, SemiDual
from moespec.spec.checks import check_at_least, check_capacity, check_option, check_positive, check_scores, check_size
from moespec.spec.errors import ConfigError

__all__ = [
    "project_simplex",
    "project_sparse_simplex",
    "sparse_transport_affinity",
    "transport_dual",
    "transport_semi_dual",
]

AXES = "groups tokens experts"


def project_simplex(xp: Namespace[Array], values: Array, *, mass: float = 1.0) -> Array:
    """Projects vectors along the last axis onto the simplex, (..., n) -> (..., n)."""
    check_scores("values", values, "... n")
    return _project(xp, xp.promote(values), values.shape[-1], check_positive("mass", mass))


def project_sparse_simplex(xp: Namespace[Array], values: Array, *, nonzeros: int, mass: float = 1.0) -> Array:
    """Projects vectors along the last axis onto simplex vectors with at most `nonzeros` nonzero entries, (..., n) -> (..., n)."""
    check_scores("values", values, "... n")
    nonzeros = check_capacity(nonzeros, values.shape[-1], name="nonzeros", of="values")
    return _project(xp, xp.promote(values), nonzeros, check_positive("mass", mass))


def transport_semi_dual(
    xp: Namespace[Array], potential: Array, utility: Array, *, capacity: int, regularization: float = 1.0
) -> SemiDual:
    """potential (G, T), utility (G, T, E) -> value (G,), gradient (G, T), plan (G, T, E)."""
    check_scores("potential", potential, "groups tokens")
    check_scores("utility", utility, AXES)
    _check_potential("potential", potential, utility, 1, "the tokens of utility")
    _, tokens, experts = utility.shape
    capacity = check_capacity(capacity, tokens)
    gamma = check_positive("regularization", regularization)
    alpha, columns = xp.promote_all(potential, xp.swapaxes(utility, 1, 2))
    plan = _Problem(columns, 1.0, tokens / experts, capacity, gamma).plan(xp, alpha)
    conjugate = xp.sum(plan * (alpha[:, None] + columns - 0.5 * gamma * plan), (1, 2))
    return SemiDual(xp.sum(alpha, 1) - conjugate, 1 - xp.sum(plan, 1), xp.swapaxes(plan, 1, 2))  # type: ignore[arg-type]


def transport_dual(
    xp: Namespace[Array],
    token_potential: Array,
    expert_potential: Array,
    utility: Array,
    *,
    capacity: int,
    regularization: float = 1.0,
) -> Dual:
    """token_potential (G, T), expert_potential (G, E), utility (G, T, E) -> value (G,), gradients (G, T) and (G, E), plan."""
    check_scores("token_potential", token_potential, "groups tokens")
    check_scores("expert_potential", expert_potential, "groups experts")
    check_scores("utility", utility, AXES)
    _check_potential("token_potential", token_potential, utility, 1, "the tokens of utility")
    _check_potential("expert_potential", expert_potential, utility, 2, "the experts of utility")
    _, tokens, experts = utility.shape
    capacity = check_capacity(capacity, tokens)
    gamma, mass = check_positive("regularization", regularization), tokens / experts
    alpha, beta, columns = xp.promote_all(token_potential, expert_potential, xp.swapaxes(utility, 1, 2))
    plan = _thresholded(xp, alpha[:, None] + beta[:, :, None] + columns, capacity, gamma)
    value = xp.sum(alpha, 1) + mass * xp.sum(beta, 1) - 0.5 * gamma * xp.sum(plan * plan, (1, 2))
    return Dual(value, 1 - xp.sum(plan, 1), mass - xp.sum(plan, 2), xp.swapaxes(plan, 1, 2))  # type: ignore[arg-type]


def _check_potential(name: str, potential: Array, utility: Array, axis: int, reason: str) -> None:
    check_size(name, potential, 0, utility.shape[0], "the groups of utility")
    check_size(name, potential, 1, utility.shape[axis], reason)


def sparse_transport_affinity(
    xp: Namespace[Array],
    utility: Array,
    *,
    capacity: int,
    objective: str = "semi_dual",
    solver: str = "adam",
    sparsity: str = "expert",
    steps: int = 20,
    learning_rate: float = 1e-2,
    tolerance: float = 1e-3,
    regularization: float = 1.0,
) -> Array:
    """utility (G, T, E) -> (G, T, E).

    Supports only `solver="adam"`, and raises ConfigError for "lbfgs". The number of steps is fixed. If the gradient norm of a group is at
    most `tolerance`, the potential of this group no longer changes in later steps.
    """
    check_scores("utility", utility, AXES)
    check_option("objective", objective, ("semi_dual", "dual"))
    check_option("solver", solver, ("adam", "lbfgs"))
    if solver == "lbfgs":
        raise ConfigError("solver: 'lbfgs' exists only in the specification and the numpy backend; use 'adam'")
    check_option("sparsity", sparsity, ("expert", "token", "none"))
    steps = check_at_least("steps", steps, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("tolerance", tolerance)
    gamma = check_positive("regularization", regularization)
    tokens, experts = utility.shape[1:]
    utility = xp.stop_gradient(xp.promote(utility))
    options = (gamma, objective, steps, learning_rate, tolerance)
    if sparsity == "token":
        nonzeros = check_capacity(capacity, experts, of="experts")
        return xp.whole(adam_plan)(xp, utility, tokens / experts, 1.0, nonzeros, *options)
    nonzeros = tokens if sparsity == "none" else check_capacity(capacity, tokens)
    columns = xp.swapaxes(utility, 1, 2)
    return xp.swapaxes(xp.whole(adam_plan)(xp, columns, 1.0, tokens / experts, nonzeros, *options), 1, 2)


def adam_plan(
    xp: Namespace[Array],
    columns: Array,
    row_mass: float,
    column_mass: float,
    nonzeros: int,
    gamma: float,
    objective: str,
    steps: int,
    learning_rate: float,
    tolerance: float,
) -> Array:
    """The plan (G, N, M) after `steps` steps of Adam from potential 0: b1 = 0.9, b2 = 0.999, epsilon = 1e-8 outside the root."""
    problem = _Problem(columns, row_mass, column_mass, nonzeros, gamma)

    def update(step: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        potential, first, second, done = state
        gradient = problem.descent(xp, potential)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        mean, mean_square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        new = potential - learning_rate * mean / (xp.sqrt(mean_square) + 1e-8)
        norm = xp.sqrt(xp.sum(gradient * gradient, 1, keepdims=True))
        return xp.where(done, potential, new), first, second, done | (norm <= tolerance)

    groups, count, rows = columns.shape
    zeros = xp.full((groups, rows if objective == "semi_dual" else rows + count), 0.0, columns)
    return problem.plan(xp, xp.loop(steps, update, (zeros, zeros, zeros, zeros[:, :1] > 0))[0])


class _Problem(NamedTuple, Generic[Array]):
    """The utility (G, N, M) of N columns and M rows, the masses of rows and columns, the nonzeros per column, and the regularisation."""

    columns: Array
    row_mass: float
    column_mass: float
    nonzeros: int
    gamma: float

    def plan(self, xp: Namespace[Array], potential: Array) -> Array:
        """Returns the plan (G, N, M) for a potential (G, M) of the semi-dual or a potential (G, M + N) of the dual."""
        rows = self.columns.shape[2]
        shifted = potential[:, None, :rows] + self.columns
        if potential.shape[1] == rows:
            return _project(xp, shifted / self.gamma, self.nonzeros, self.column_mass)
        return _thresholded(xp, shifted + potential[:, rows:, None], self.nonzeros, self.gamma)

    def descent(self, xp: Namespace[Array], potential: Array) -> Array:
        """Returns the gradient of the negative objective at a potential."""
        plan = self.plan(xp, potential)
        of_rows = xp.sum(plan, 1) - self.row_mass
        if potential.shape == of_rows.shape:
            return of_rows
        return xp.concatenate([of_rows, xp.sum(plan, 2) - self.column_mass], 1)


def _thresholded(xp: Namespace[Array], shifted: Array, nonzeros: int, gamma: float) -> Array:
    """Returns the plan of the dual: the positive entries among the `nonzeros` largest of each vector, divided by gamma, and 0 elsewhere."""
    _, place = xp.largest(shifted, nonzeros)
    return place(lambda entries: xp.maximum(entries, 0.0) / gamma)


def _project(xp: Namespace[Array], values: Array, nonzeros: int, mass: float) -> Array:
    """Replaces the `nonzeros` largest entries `v` along the last axis with `max(v - tau, 0)`, and the others with 0. The sum is `mass`."""
    descending, place = xp.largest(values, nonzeros)
    rank = xp.arange(1, nonzeros + 1, values)
    excess = (xp.cumsum(descending, -1) - mass) / rank
    # tau is the value of `excess` at the last rank where `descending` exceeds `excess`. Rank 1 always qualifies.
    last = xp.max(xp.where(descending > excess, rank, 1.0), -1, keepdims=True)
    tau = xp.sum(xp.where(rank == last, excess, 0.0), -1, keepdims=True)
    return place(lambda entries: xp.maximum(entries - tau, 0.0))
