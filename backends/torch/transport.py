"""Sparsity-constrained optimal transport: simplex projections, the semi-dual, the dual, and the solver of the router.

Columns are the last axis here, so that the largest entries of every column of every group are found in one call.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.operators import operator
from moespec.backends.torch.selection import top_indices
from moespec.spec.checks import check_at_least, check_capacity, check_option, check_positive, check_scores, check_size
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.transport_duals import Dual, SemiDual

__all__ = [
    "project_simplex",
    "project_sparse_simplex",
    "sparse_transport_affinity",
    "transport_dual",
    "transport_semi_dual",
]

AXES = "groups tokens experts"


def project_simplex(values: Tensor, *, mass: float = 1.0) -> Tensor:
    """Along the last axis: (..., n) -> (..., n)."""
    _check_values(values)
    return _project(widen(values), check_positive("mass", mass))


def project_sparse_simplex(values: Tensor, *, nonzeros: int, mass: float = 1.0) -> Tensor:
    """Along the last axis: (..., n) -> (..., n)."""
    _check_values(values)
    nonzeros = check_capacity(nonzeros, values.shape[-1], name="nonzeros", of="values")
    return _project_sparse(widen(values), nonzeros, check_positive("mass", mass))


def _check_values(values: Tensor) -> None:
    if values.ndim < 1:
        raise ShapeError(f"values: expected at least one axis, got shape {tuple(values.shape)}")
    check_scores("values", values, " ".join(["groups"] * (values.ndim - 1) + ["n"]))


def _project(values: Tensor, mass: float) -> Tensor:
    return (values - _threshold(torch.sort(values, dim=-1, descending=True, stable=True).values, mass)).clamp_min(0)


def _threshold(descending: Tensor, mass: float) -> Tensor:
    """`tau` (..., 1) with `sum max(v - tau, 0) = mass`: the excess per entry at the last entry above its own."""
    count = torch.arange(1, descending.shape[-1] + 1, device=descending.device, dtype=descending.dtype)
    excess = (descending.cumsum(dim=-1) - mass) / count
    support = torch.where(descending > excess, count, 0).amax(dim=-1, keepdim=True)
    return torch.where(count == support, excess, 0).sum(dim=-1, keepdim=True)


def _project_sparse(values: Tensor, nonzeros: int, mass: float) -> Tensor:
    index = top_indices(values, nonzeros).long()
    kept = values.gather(-1, index)
    return torch.zeros_like(values).scatter(-1, index, (kept - _threshold(kept, mass)).clamp_min(0))


def transport_semi_dual(potential: Tensor, utility: Tensor, *, capacity: int, regularization: float = 1.0) -> SemiDual:
    """potential (G, T), utility (G, T, E) -> value (G,), gradient (G, T), plan (G, T, E)."""
    check_scores("potential", potential, "groups tokens")
    check_scores("utility", utility, AXES)
    _check_potential("potential", potential, utility, 1, "the tokens of utility")
    capacity = check_capacity(capacity, utility.shape[1])
    gamma = check_positive("regularization", regularization)
    dtype = wide(potential.dtype, utility.dtype)
    problem = _Problem(utility.to(dtype).mT, 1.0, utility.shape[1] / utility.shape[2], capacity, gamma)
    value, gradient, columns = _semi_dual(potential.to(dtype), problem)
    results: Any = (value, gradient, columns.mT)
    return SemiDual(*results)


def _check_potential(name: str, potential: Tensor, utility: Tensor, axis: int, reason: str) -> None:
    check_size(name, potential, 0, utility.shape[0], "the groups of utility")
    check_size(name, potential, 1, utility.shape[axis], reason)


class _Problem(NamedTuple):
    """Utility with its columns last (groups, columns, rows), the masses, the non-zeros of a column, and gamma."""

    utility: Tensor
    row_mass: float
    column_mass: float
    nonzeros: int
    gamma: float


def _columns(potential: Tensor, problem: _Problem) -> Tensor:
    """The plan (groups, columns, rows) of the semi-dual at a potential (groups, rows), or of the dual at one of all rows
    and then all columns."""
    rows = problem.utility.shape[2]
    shifted = potential[:, None, :rows] + problem.utility
    if potential.shape[1] == rows:
        return _project_sparse(shifted / problem.gamma, problem.nonzeros, problem.column_mass)
    return _thresholded(shifted + potential[:, rows:, None], problem.nonzeros, problem.gamma)


def _thresholded(shifted: Tensor, nonzeros: int, gamma: float) -> Tensor:
    """The columns of the dual's plan: the largest entries along the last axis that are positive, divided by gamma."""
    index = top_indices(shifted, nonzeros).long()
    return torch.zeros_like(shifted).scatter(-1, index, shifted.gather(-1, index).clamp_min(0) / gamma)


def _semi_dual(alpha: Tensor, problem: _Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Value (groups,), gradient (groups, rows) and plan (groups, columns, rows)."""
    plan = _columns(alpha, problem)
    conjugate = (plan * (alpha[:, None, :] + problem.utility - 0.5 * problem.gamma * plan)).sum(dim=(1, 2))
    return problem.row_mass * alpha.sum(dim=1) - conjugate, problem.row_mass - plan.sum(dim=1), plan


def transport_dual(
    token_potential: Tensor,
    expert_potential: Tensor,
    utility: Tensor,
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
    capacity = check_capacity(capacity, utility.shape[1])
    gamma = check_positive("regularization", regularization)
    dtype = wide(token_potential.dtype, expert_potential.dtype, utility.dtype)
    alpha, beta = token_potential.to(dtype), expert_potential.to(dtype)
    column_mass = utility.shape[1] / utility.shape[2]
    shifted = alpha[:, None, :] + beta[:, :, None] + utility.to(dtype).mT
    plan = _thresholded(shifted, capacity, gamma)
    value = alpha.sum(dim=1) + column_mass * beta.sum(dim=1) - 0.5 * gamma * (plan * plan).sum(dim=(1, 2))
    results: Any = (value, 1.0 - plan.sum(dim=1), column_mass - plan.sum(dim=2), plan.mT)
    return Dual(*results)


def sparse_transport_affinity(
    utility: Tensor,
    *,
    capacity: int,
    objective: str = "semi_dual",
    solver: str = "adam",
    sparsity: str = "expert",
    steps: int = 20,
    learning_rate: float = 1e-2,
    tolerance: float = 1e-3,
    regularization: float = 1.0,
) -> Tensor:
    """utility (G, T, E) -> (G, T, E).

    Only by `solver="adam"`; "lbfgs" raises ConfigError. The number of steps is fixed: a group that has reached the
    `tolerance` keeps its potential while the others go on.
    """
    check_scores("utility", utility, AXES)
    check_option("objective", objective, ("semi_dual", "dual"))
    check_option("solver", solver, ("adam", "lbfgs"))
    if solver == "lbfgs":
        raise ConfigError("solver: 'lbfgs' runs in the specification and its numpy backend only; use 'adam'")
    check_option("sparsity", sparsity, ("expert", "token", "none"))
    check_at_least("steps", steps, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("tolerance", tolerance)
    gamma = check_positive("regularization", regularization)
    _, tokens, experts = utility.shape
    utility = widen(utility.detach())
    if sparsity == "token":
        nonzeros = check_capacity(capacity, experts, of="experts")
        plan: Tensor = _transport_plan(
            utility.contiguous(), True, objective, nonzeros, gamma, steps, learning_rate, tolerance
        )
        return plan
    nonzeros = tokens if sparsity == "none" else check_capacity(capacity, tokens)
    by_column = utility.mT.contiguous()
    columns: Tensor = _transport_plan(by_column, False, objective, nonzeros, gamma, steps, learning_rate, tolerance)
    return columns.mT


@operator
def _transport_plan(
    utility: Tensor,
    unit_columns: bool,
    objective: str,
    nonzeros: int,
    gamma: float,
    steps: int,
    learning_rate: float,
    tolerance: float,
) -> Tensor:
    """The plan (groups, columns, rows) after Adam on the negative objective from 0.

    Columns have mass 1 and rows the mean (`unit_columns`), or the reverse. b1 = 0.9, b2 = 0.999, epsilon = 1e-8 outside
    the root. An opaque operator: a compiler would not fuse its selections, and unrolled they are slow to compile.
    """
    groups, columns, rows = utility.shape
    row_mass, column_mass = (columns / rows, 1.0) if unit_columns else (1.0, rows / columns)
    problem = _Problem(utility, row_mass, column_mass, nonzeros, gamma)
    potential = utility.new_zeros(groups, rows if objective == "semi_dual" else rows + columns)
    first, second = torch.zeros_like(potential), torch.zeros_like(potential)
    active = torch.ones(groups, 1, dtype=torch.bool, device=potential.device)
    for step in range(1, steps + 1):
        plan = _columns(potential, problem)
        gradient = plan.sum(dim=1) - row_mass
        if objective == "dual":
            gradient = torch.cat([gradient, plan.sum(dim=2) - column_mass], dim=1)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        mean = first / (1 - 0.9**step)
        mean_square = second / (1 - 0.999**step)
        update = learning_rate * mean / (mean_square.sqrt() + 1e-8)
        potential = torch.where(active, potential - update, potential)
        active = active & (gradient.square().sum(dim=1, keepdim=True).sqrt() > tolerance)
    return _columns(potential, problem)


@_transport_plan.register_fake
def _(utility: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(utility)
