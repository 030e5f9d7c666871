"""Other projections on the simplex, duals and plans of sparsity-constrained transport."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import wrong
from moespec.spec.numerics import positive_part, stable_order

__all__ = ["MUTANTS"]


def mass_ignored(B: Any, values: Any, *, mass: float = 1.0) -> Any:
    """The projection on the simplex sums to 1, whatever mass is asked for."""
    B.project_simplex(values, mass=mass)
    return B.project_simplex(values)


def clipped_and_rescaled(B: Any, values: Any, *, mass: float = 1.0) -> Any:
    """The projection on the simplex is none: negative values become 0 and the others are divided by their sum."""
    B.project_simplex(values, mass=mass)
    kept = positive_part(values)
    return mass * (kept + 1e-12) / np.sum(kept + 1e-12, axis=-1, keepdims=True)


def ties_to_the_higher_index(B: Any, values: Any, **options: Any) -> Any:
    """Among equal values the sparse projection keeps those of higher index."""
    return B.project_sparse_simplex(values[..., ::-1], **options)[..., ::-1]


def kept_and_rescaled(B: Any, values: Any, *, nonzeros: int, mass: float = 1.0) -> Any:
    """The sparse projection keeps the largest values and divides them by their sum, which is no projection."""
    order = stable_order(values)[..., :nonzeros]
    B.project_sparse_simplex(values, nonzeros=nonzeros, mass=mass)
    kept = np.zeros(values.shape)
    np.put_along_axis(kept, order, np.take_along_axis(positive_part(values) + 1e-12, order, -1), -1)
    return mass * kept / np.sum(kept, axis=-1, keepdims=True)


def projected_then_cut(B: Any, values: Any, *, nonzeros: int, mass: float = 1.0) -> Any:
    """The sparse projection keeps the largest entries of the projection, which then do not sum to the mass."""
    kept = B.project_sparse_simplex(values, nonzeros=nonzeros, mass=mass) != 0
    return np.where(kept, B.project_simplex(values, mass=mass), 0.0)


def cardinality_ignored(B: Any, values: Any, *, nonzeros: int, mass: float = 1.0) -> Any:
    """The sparse projection may have any number of non-zero entries."""
    B.project_sparse_simplex(values, nonzeros=nonzeros, mass=mass)
    return B.project_simplex(values, mass=mass)


def constant_in_the_conjugate(
    B: Any, potential: Any, utility: Any, *, capacity: int, regularization: float = 1.0
) -> Any:
    """The conjugate of each column contains the constant gamma b / 2."""
    found = B.transport_semi_dual(potential, utility, capacity=capacity, regularization=regularization)
    _, tokens, experts = utility.shape
    return found._replace(value=found.value - regularization * tokens / experts / 2 * experts)


def negative_semi_dual(B: Any, potential: Any, utility: Any, **options: Any) -> Any:
    """The semi-dual and its gradient are negated, as a solver that minimises wants them."""
    found = B.transport_semi_dual(potential, utility, **options)
    return found._replace(value=-found.value, gradient=-found.gradient)


def dual_without_cardinality(B: Any, token_potential: Any, expert_potential: Any, utility: Any, **options: Any) -> Any:
    """The dual lets any number of entries of a column be positive."""
    B.transport_dual(token_potential, expert_potential, utility, **options)
    return B.transport_dual(token_potential, expert_potential, utility, **{**options, "capacity": utility.shape[1]})


def regularization_of_one(B: Any, token_potential: Any, expert_potential: Any, utility: Any, **options: Any) -> Any:
    """The dual does not use the strength of the regularisation."""
    B.transport_dual(token_potential, expert_potential, utility, **options)
    return B.transport_dual(token_potential, expert_potential, utility, **{**options, "regularization": 1.0})


def _options(**changed: Any) -> Callable[..., Any]:
    def transport(B: Any, utility: Any, **options: Any) -> Any:
        B.sparse_transport_affinity(utility, **options)
        return B.sparse_transport_affinity(utility, **{**options, **changed})

    return transport


def solved_to_convergence(B: Any, utility: Any, **options: Any) -> Any:
    """The semi-dual is solved to convergence."""
    return _options(solver="lbfgs")(B, utility, **options)


def rows_are_sparse(B: Any, utility: Any, *, capacity: int, sparsity: str = "expert", **options: Any) -> Any:
    """Rows of the plan are sparse, not columns."""
    plan = B.sparse_transport_affinity(utility, capacity=capacity, sparsity=sparsity, **options)
    if sparsity != "expert":
        return plan
    capacity = min(capacity, utility.shape[2])
    return B.sparse_transport_affinity(utility, capacity=capacity, sparsity="token", **options)


def columns_are_sparse(B: Any, utility: Any, *, sparsity: str = "expert", **options: Any) -> Any:
    """Columns of the plan are sparse, also where rows are asked for, or nothing."""
    B.sparse_transport_affinity(utility, sparsity=sparsity, **options)
    return B.sparse_transport_affinity(utility, **options)


def no_sparsity(B: Any, utility: Any, **options: Any) -> Any:
    """The plan is not sparse: its regularisation is quadratic, and nothing else."""
    return _options(sparsity="none")(B, utility, **options)


def plan_before_the_last_update(B: Any, utility: Any, *, steps: int = 20, **options: Any) -> Any:
    """The plan is that at the potential before the last update."""
    plan = B.sparse_transport_affinity(utility, steps=steps, **options)
    if steps > 1:
        return B.sparse_transport_affinity(utility, steps=steps - 1, **options)
    return plan


def solved_to_the_last_step(B: Any, utility: Any, **options: Any) -> Any:
    """The solver takes all its steps, and does not stop where the gradient is within the tolerance."""
    return _options(tolerance=1e-300)(B, utility, **options)


def transported_mass_of_one(B: Any, utility: Any, **options: Any) -> Any:
    """The plan of sparsity-constrained transport is divided by the number of tokens, so that it sums to 1."""
    return B.sparse_transport_affinity(utility, **options) / utility.shape[1]


def twenty_steps(B: Any, utility: Any, **options: Any) -> Any:
    """The solver takes 20 steps of 0.01, whatever it is asked for."""
    return _options(steps=20, learning_rate=1e-2)(B, utility, **options)


MUTANTS = (
    wrong(mass_ignored, "project_simplex"),
    wrong(clipped_and_rescaled, "project_simplex"),
    wrong(ties_to_the_higher_index, "project_sparse_simplex", ledger="SI-1"),
    wrong(kept_and_rescaled, "project_sparse_simplex"),
    wrong(projected_then_cut, "project_sparse_simplex"),
    wrong(cardinality_ignored, "project_sparse_simplex"),
    wrong(constant_in_the_conjugate, "transport_semi_dual", ledger="TD-1"),
    wrong(negative_semi_dual, "transport_semi_dual"),
    wrong(dual_without_cardinality, "transport_dual"),
    wrong(regularization_of_one, "transport_dual"),
    wrong(solved_to_convergence, "sparse_transport_affinity", ledger="ST-1"),
    wrong(rows_are_sparse, "sparse_transport_affinity", ledger="ST-4"),
    wrong(columns_are_sparse, "sparse_transport_affinity", ledger="ST-4"),
    wrong(no_sparsity, "sparse_transport_affinity"),
    wrong(plan_before_the_last_update, "sparse_transport_affinity", ledger="ST-1"),
    wrong(solved_to_the_last_step, "sparse_transport_affinity", ledger="ST-1"),
    wrong(transported_mass_of_one, "sparse_transport_affinity"),
    wrong(twenty_steps, "sparse_transport_affinity", ledger="ST-1"),
)
"""The mutants of this module."""
