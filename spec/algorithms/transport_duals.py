"""The two concave duals of sparsity-constrained transport, their gradients and their plans.

    maximise  <P, U> - gamma / 2 |P|^2   over P >= 0 with row sums 1, column sums T / E, at most k non-zeros per column

| here | Routers (arXiv 2401.15969), eq. (9), and SparseOT (arXiv 2209.15466) |
|---|---|
| `utility` U (T, E) | -C, the negative cost |
| `capacity` | k |
| `regularization` | gamma |
| `potential`, `token_potential` (T,) | alpha |
| `expert_potential` (E,) | beta |
| row sums 1, column sums T / E | marginals a and b |

Ambiguity ledger

TD-1: Which constant does the conjugate contain?
    Reading: no constant: `conj(x) = max <x, p> - gamma / 2 |p|^2`.
    Alternative b: a constant per column, which changes neither the gradients nor the plans.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py, _max_l2_top_k.
"""

from typing import NamedTuple, TypeVar

import numpy as np

from moespec.spec.algorithms.simplex import project_sparse
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_positive, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, positive_part, stable_order
from moespec.spec.values import as_array

__all__ = ["Dual", "SemiDual", "transport_dual", "transport_semi_dual"]


class SemiDual(NamedTuple):
    """The semi-dual at a potential: value (a scalar), gradient (tokens,), plan (tokens, experts)."""

    value: Array
    gradient: Array
    plan: Array


class Dual(NamedTuple):
    """The dual at two potentials: value (a scalar), gradients (tokens,) and (experts,), plan (tokens, experts)."""

    value: Array
    token_gradient: Array
    expert_gradient: Array
    plan: Array


Found = TypeVar("Found", SemiDual, Dual)


def transport_semi_dual(
    potential: ArrayLike, utility: ArrayLike, *, capacity: int, regularization: float = 1.0
) -> SemiDual:
    """Computes the semi-dual, its gradient and the transport plan:

        s(alpha)        = sum_t alpha[t] - sum_e conj(alpha + U[:, e])
        conj(x)         = max <x, p> - gamma / 2 |p|^2   over p >= 0, sum(p) = T / E, at most k non-zeros
        P[:, e]         = the maximiser, the sparse projection of (alpha + U[:, e]) / gamma
        gradient[t]     = 1 - sum_e P[t, e]

    For every alpha, the columns of P sum to T / E and have at most k non-zeros. Row t sums to 1 only if `gradient[t]` is 0.
    For k < T, the transport problem is not convex. The gradient may be nonzero at every alpha.

    Args:
        potential: alpha, (tokens,).
        utility: U, (tokens, experts).
        capacity: k, from 1 to tokens.
        regularization: gamma, greater than 0.

    Returns:
        SemiDual.

    Raises:
        ContractError: the plan overflows.

    Source: Routers, eq. (9); SparseOT; Blondel et al. 2018 (arXiv 1710.06276).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> value, gradient, plan = transport_semi_dual(np.zeros(6), softmax_affinity(LOGITS), capacity=2)
    >>> round(float(value), 12)
    -0.568453162979
    >>> gradient.round(10).tolist()
    [1.0, 0.0538350051, -0.7027777963, -0.1461370873, -0.0538350051, -0.1510851163]
    """
    alpha = as_array("potential", potential, "tokens")
    utility = as_array("utility", utility, "tokens experts")
    tokens, experts = utility.shape
    check_size("potential", alpha, 0, tokens, "the tokens of utility")
    check_capacity(capacity, tokens)
    gamma = check_positive("regularization", regularization)
    return finite(semi_dual(alpha, utility, 1.0, tokens / experts, capacity, gamma))


@np.errstate(over="ignore", invalid="ignore")  # no NumPy warnings: `check_overflow` raises an error
def semi_dual(
    alpha: Array, utility: Array, row_mass: float, column_mass: float, nonzeros: int, gamma: float
) -> SemiDual:
    """Computes `transport_semi_dual` without argument checks, for rows of mass `row_mass` and columns of mass `column_mass`."""
    columns = []
    value = row_mass * np.sum(alpha)
    for u in utility.T:
        x = alpha + u
        check_overflow(scaled := x / gamma)
        p = project_sparse(scaled, nonzeros, column_mass)
        value = value - (np.sum(x * p) - 0.5 * gamma * np.sum(p * p))
        columns.append(p)
    plan = np.stack(columns, axis=1)
    return SemiDual(value, row_mass - plan.sum(axis=1), plan)


def transport_dual(
    token_potential: ArrayLike,
    expert_potential: ArrayLike,
    utility: ArrayLike,
    *,
    capacity: int,
    regularization: float = 1.0,
) -> Dual:
    """Computes the dual, its gradients and the transport plan from `x = alpha + beta[e] + U[:, e]` for each column e:

        P[t, e]            = max(x[t], 0) / gamma on the k largest entries of x, else 0
        value              = sum_t alpha[t] + T / E sum_e beta[e] - gamma / 2 |P|^2
        token_gradient[t]  = 1 - sum_e P[t, e]
        expert_gradient[e] = T / E - sum_t P[t, e]

    The maximum of the dual over beta is the semi-dual.

    Args:
        token_potential: alpha, (tokens,).
        expert_potential: beta, (experts,).
        utility: U, (tokens, experts).
        capacity: k, from 1 to tokens.
        regularization: gamma, greater than 0.

    Returns:
        Dual.

    Raises:
        ContractError: the plan overflows.

    Source: SparseOT; Blondel et al. 2018 (arXiv 1710.06276).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> dual = transport_dual(np.full(6, 0.5), np.full(3, 0.25), softmax_affinity(LOGITS), capacity=2)
    >>> round(float(dual.value), 12)
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
    return finite(dual(alpha, beta, utility, 1.0, tokens / experts, capacity, gamma))


@np.errstate(over="ignore", invalid="ignore")  # no NumPy warnings: `check_overflow` raises an error
def dual(
    alpha: Array, beta: Array, utility: Array, row_mass: float, column_mass: float, nonzeros: int, gamma: float
) -> Dual:
    """Computes `transport_dual` without argument checks, for rows of mass `row_mass` and columns of mass `column_mass`."""
    columns = []
    for b, u in zip(beta, utility.T, strict=True):
        x = alpha + b + u
        support = stable_order(x)[:nonzeros]
        columns.append(np.zeros_like(x))
        columns[-1][support] = positive_part(x[support]) / gamma
    plan = np.stack(columns, axis=1)
    value = row_mass * np.sum(alpha) + column_mass * np.sum(beta) - 0.5 * gamma * np.sum(plan * plan)
    return Dual(value, row_mass - plan.sum(axis=1), column_mass - plan.sum(axis=0), plan)


def finite(found: Found) -> Found:
    """Returns `found`, a SemiDual or Dual, unchanged. Raises `ContractError` if an array in `found` is not finite."""
    for part in found:
        check_overflow(part)
    return found


def check_overflow(array: Array) -> None:
    """Raises `ContractError` if an entry of `array` is not finite."""
    if not np.isfinite(array).all():
        raise ContractError("utility: too large for the regularization; the plan overflows")
