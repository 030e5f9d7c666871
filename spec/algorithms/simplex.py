"""Euclidean projections onto the simplex, and onto the points of the simplex with at most k non-zero entries.

| here | Routers (arXiv 2401.15969) and SparseOT (arXiv 2209.15466) |
|---|---|
| `values` (n,) | the vector to project |
| `mass` | b, the sum of the projection |
| `nonzeros` | k, the cardinality |

Ambiguity ledger

SI-1: If only some of several equal values may be non-zero, which of them are non-zero?
    Reading: the values with the lowest indices are non-zero.
        By: google/jaxopt, jaxopt/_src/projection.py, _projection_unit_sparse_simplex (jax.lax.top_k).
    Alternative b: the values that an unstable sort happens to keep are non-zero.
        By: PythonOT/POT, ot/utils.py, projection_sparse_simplex (argsort).
"""

import numpy as np

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_positive
from moespec.spec.numerics import Array, positive_part, stable_order
from moespec.spec.values import as_array

__all__ = ["project_simplex", "project_sparse_simplex"]


def project_simplex(values: ArrayLike, *, mass: float = 1.0) -> Array:
    """Returns the vector p closest to v with `p >= 0` and `sum(p) = mass`: `p[i] = max(v[i] - tau, 0)`. Here, u is v in descending order:

        rho = max {j : u[j] - (u[1] + ... + u[j] - mass) / j > 0},    tau = (u[1] + ... + u[rho] - mass) / rho

    Args:
        values: v, (n,).
        mass: greater than 0.

    Returns:
        (n,).

    Source: Held, Wolfe and Crowder 1974.

    >>> project_simplex([0.9, 0.2, 0.5, 0.45]).round(6).tolist()
    [0.616667, 0.0, 0.216667, 0.166667]
    """
    values = as_array("values", values, "n")
    return project(values, check_positive("mass", mass))


def project_sparse_simplex(values: ArrayLike, *, nonzeros: int, mass: float = 1.0) -> Array:
    """Returns the vector p closest to `values` with `p >= 0`, `sum(p) = mass` and at most `nonzeros` non-zero entries.

    The `nonzeros` largest values (ties go to the lower index) are projected onto the simplex. All other values become 0.

    Args:
        values: (n,).
        nonzeros: from 1 to n.
        mass: greater than 0.

    Returns:
        (n,).

    Source: SparseOT.

    >>> project_sparse_simplex([0.9, 0.2, 0.5, 0.45], nonzeros=2).round(6).tolist()
    [0.7, 0.0, 0.3, 0.0]
    >>> project_sparse_simplex([0.9, 0.2, 0.5, 0.45], nonzeros=4).round(6).tolist()
    [0.616667, 0.0, 0.216667, 0.166667]
    """
    values = as_array("values", values, "n")
    check_capacity(nonzeros, len(values), name="nonzeros", of="values")
    return project_sparse(values, nonzeros, check_positive("mass", mass))


def project(values: Array, mass: float) -> Array:
    """Computes `project_simplex` without checks. Shifts all values so that the largest is 0, which does not change the projection."""
    shifted = values - values.real.max()
    descending = shifted[stable_order(shifted)]
    thresholds = (np.cumsum(descending) - mass) / np.arange(1, len(values) + 1)
    support = np.flatnonzero((descending - thresholds).real > 0)
    return positive_part(shifted - thresholds[support[-1]])


def project_sparse(values: Array, nonzeros: int, mass: float) -> Array:
    """Computes `project_sparse_simplex` without checking the arguments."""
    support = stable_order(values)[:nonzeros]
    projected = np.zeros_like(values)
    projected[support] = project(values[support], mass)
    return projected
