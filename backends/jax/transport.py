"""Sparsity-constrained optimal transport: projections, dual functions, and the reference Adam solver of the router.

Shape comments: G groups, T tokens, E experts. Everything is in float32 or better.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, top_indices, wide
from moespec.spec.checks import (
    check_at_least,
    check_capacity,
    check_option,
    check_positive,
    check_scores,
    check_size,
)
from moespec.spec.errors import ConfigError
from moespec.spec.transport_duals import Dual, SemiDual

__all__ = [
    "project_simplex",
    "project_sparse_simplex",
    "sparse_transport_affinity",
    "transport_dual",
    "transport_semi_dual",
]


def project_simplex(values: Array, *, mass: float = 1.0) -> Array:
    """Along the last axis: (..., n) -> (..., n)."""
    return project_sparse_simplex(values, nonzeros=values.shape[-1], mass=mass)


def project_sparse_simplex(values: Array, *, nonzeros: int, mass: float = 1.0) -> Array:
    """Along the last axis: (..., n) -> (..., n)."""
    check_scores("values", values, " ".join(f"axis{i}" for i in range(max(len(values.shape), 1))))
    nonzeros = check_capacity(nonzeros, values.shape[-1], name="nonzeros", of="values")
    return _project(wide(values), nonzeros, check_positive("mass", mass))


def transport_semi_dual(potential: Array, utility: Array, *, capacity: int, regularization: float = 1.0) -> SemiDual:
    """potential (G, T), utility (G, T, E) -> value (G,), gradient (G, T), plan (G, T, E)."""
    check_scores("potential", potential, "groups tokens")
    check_scores("utility", utility, "groups tokens experts")
    groups, tokens, experts = utility.shape
    check_size("potential", potential, 0, groups, "the groups of utility")
    check_size("potential", potential, 1, tokens, "the tokens of utility")
    capacity = check_capacity(capacity, tokens)
    gamma = check_positive("regularization", regularization)
    potential, columns = wide(potential), jnp.swapaxes(wide(utility), 1, 2)
    plan = _Problem(columns, 1.0, tokens / experts, capacity, gamma).plan(potential)
    conjugate = jnp.sum((potential[:, None] + columns) * plan - 0.5 * gamma * plan * plan, axis=(1, 2))
    value, gradient = jnp.sum(potential, axis=1) - conjugate, 1 - jnp.sum(plan, axis=1)
    return SemiDual(value, gradient, jnp.swapaxes(plan, 1, 2))  # type: ignore[arg-type]


def transport_dual(
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
    check_scores("utility", utility, "groups tokens experts")
    groups, tokens, experts = utility.shape
    for name, array, size in (
        ("token_potential", token_potential, tokens),
        ("expert_potential", expert_potential, experts),
    ):
        check_size(name, array, 0, groups, "the groups of utility")
        check_size(name, array, 1, size, "the shape of utility")
    capacity = check_capacity(capacity, tokens)
    gamma = check_positive("regularization", regularization)
    alpha, beta = wide(token_potential), wide(expert_potential)
    shifted = alpha[:, None] + beta[:, :, None] + jnp.swapaxes(wide(utility), 1, 2)
    plan = _thresholded(shifted, capacity, gamma)
    mass = tokens / experts
    value = jnp.sum(alpha, axis=1) + mass * jnp.sum(beta, axis=1) - 0.5 * gamma * jnp.sum(plan * plan, axis=(1, 2))
    to_alpha, to_beta = 1 - jnp.sum(plan, axis=1), mass - jnp.sum(plan, axis=2)
    return Dual(value, to_alpha, to_beta, jnp.swapaxes(plan, 1, 2))  # type: ignore[arg-type]


def sparse_transport_affinity(
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

    Only by `solver="adam"`; "lbfgs" raises ConfigError. The number of steps is fixed: a group that has reached the
    `tolerance` keeps its potential while the others go on.
    """
    check_scores("utility", utility, "groups tokens experts")
    check_option("objective", objective, ("semi_dual", "dual"))
    check_option("solver", solver, ("adam", "lbfgs"))
    if solver == "lbfgs":
        raise ConfigError("solver: 'lbfgs' is only in the specification and its numpy backend, here use 'adam'")
    check_option("sparsity", sparsity, ("expert", "token", "none"))
    steps = check_at_least("steps", steps, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("tolerance", tolerance)
    gamma = check_positive("regularization", regularization)
    tokens, experts = utility.shape[1:]
    utility = lax.stop_gradient(wide(utility))
    if sparsity == "token":
        nonzeros = check_capacity(capacity, experts, of="experts")
        problem = _Problem(utility, tokens / experts, 1.0, nonzeros, gamma)
        return _adam(problem, objective, steps, learning_rate, tolerance)
    nonzeros = tokens if sparsity == "none" else check_capacity(capacity, tokens)
    problem = _Problem(jnp.swapaxes(utility, 1, 2), 1.0, tokens / experts, nonzeros, gamma)
    return jnp.swapaxes(_adam(problem, objective, steps, learning_rate, tolerance), 1, 2)


class _Problem(NamedTuple):
    """Utility by columns (G, N, M), the masses of rows and columns, the non-zeros of a column, and gamma."""

    columns: Array
    row_mass: float
    column_mass: float
    nonzeros: int
    gamma: float

    def plan(self, potential: Array) -> Array:
        """The plan of the semi-dual at a potential (G, M), or of the dual at one (G, M + N), columns last: (G, N, M)."""
        rows = self.columns.shape[2]
        shifted = potential[:, None, :rows] + self.columns
        if potential.shape[1] == rows:
            return _project(shifted / self.gamma, self.nonzeros, self.column_mass)
        return _thresholded(shifted + potential[:, rows:, None], self.nonzeros, self.gamma)

    def descent(self, potential: Array) -> Array:
        """The gradient of the negative objective at a potential."""
        plan = self.plan(potential)
        of_rows = jnp.sum(plan, axis=1) - self.row_mass
        if potential.shape == of_rows.shape:
            return of_rows
        return jnp.concatenate([of_rows, jnp.sum(plan, axis=2) - self.column_mass], axis=1)


def _adam(problem: _Problem, objective: str, steps: int, learning_rate: float, tolerance: float) -> Array:
    """The plan after Adam on the negative objective from 0: b1 = 0.9, b2 = 0.999, epsilon = 1e-8 outside the root."""

    def update(step: Any, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        potential, first, second, done = state
        gradient = problem.descent(potential)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        count = (step + 1).astype(potential.dtype)
        mean = first / (1 - 0.9**count)
        mean_square = second / (1 - 0.999**count)
        moved = potential - learning_rate * mean / (jnp.sqrt(mean_square) + 1e-8)
        norm = jnp.sqrt(jnp.sum(gradient * gradient, axis=1, keepdims=True))
        return jnp.where(done, potential, moved), first, second, done | (norm <= tolerance)

    groups, columns, rows = problem.columns.shape
    zeros = jnp.zeros((groups, rows if objective == "semi_dual" else rows + columns), problem.columns.dtype)
    start = (zeros, zeros, zeros, jnp.zeros((groups, 1), bool))
    return problem.plan(lax.fori_loop(0, steps, update, start)[0])


def _thresholded(shifted: Array, nonzeros: int, gamma: float) -> Array:
    """The columns of the dual's plan: the largest entries along the last axis that are positive, divided by gamma."""
    return jnp.where(_largest(shifted, nonzeros)[0], jnp.maximum(shifted, 0) / gamma, 0)


def _project(values: Array, nonzeros: int, mass: float) -> Array:
    kept, descending = _largest(values, nonzeros)
    rank = jnp.arange(1, nonzeros + 1, dtype=values.dtype)
    excess = (jnp.cumsum(descending, axis=-1) - mass) / rank
    # The threshold of the last rank that stays above it; rank 1 always does.
    last = jnp.max(jnp.where(descending > excess, rank, 1), axis=-1, keepdims=True)
    threshold = jnp.sum(jnp.where(rank == last, excess, 0), axis=-1, keepdims=True)
    return jnp.where(kept, jnp.maximum(values - threshold, 0), 0)


def _largest(values: Array, count: int) -> tuple[Array, Array]:
    """A mask of the `count` largest entries along the last axis (ties: lower index first), and they, descending."""
    if count == values.shape[-1]:
        return jnp.ones_like(values, dtype=bool), -jnp.sort(-values, axis=-1)
    index = top_indices(values, count)
    descending = jnp.take_along_axis(values, index, axis=-1)
    # Entries equal to the last one kept are kept up to its index: no scatter. That one itself is known by its index: XLA may
    # compute `values` again for the comparison, where they are rounded differently.
    position = jnp.arange(values.shape[-1], dtype=index.dtype)
    smallest, last = descending[..., -1:], index[..., -1:]
    return (values > smallest) | ((values == smallest) & (position <= last)) | (position == last), descending
