"""Embedding of tokens. The values of ids are not checked: for one that the table does not have, results are undefined."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from moespec.backends.jax.arrays import wide
from moespec.backends.jax.explicit import by_groups
from moespec.spec.checks import check_integers, check_scores

__all__ = ["embedding"]


@by_groups({"ids": "group"})
def embedding(ids: Array, table: Array) -> Array:
    """ids (N, S), table (V, D) -> (N, S, D)."""
    check_integers("ids", ids, "groups tokens")
    check_scores("table", table, "ids width")
    return _rows(jnp.asarray(table), jnp.asarray(ids))


@jax.custom_vjp
def _rows(table: Array, ids: Array) -> Array:
    return table[ids]


def _forward(table: Array, ids: Array) -> tuple[Array, tuple[Array, Array]]:
    return table[ids], (table, ids)


def _backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    """Sums over the tokens of each id in a fixed order, in float32 or better: a scatter would add as threads come on a GPU.

    A stable sort brings the tokens of an id together, and a scan adds them up.
    """
    table, ids = residuals
    order = jnp.argsort(ids.reshape(-1), stable=True)
    ordered = ids.reshape(-1)[order]
    rows = wide(cotangent.reshape(-1, table.shape[1])[order])
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])

    def add(before: tuple[Array, Array], after: tuple[Array, Array]) -> tuple[Array, Array]:
        return before[0] | after[0], jnp.where(after[0][:, None], after[1], before[1] + after[1])

    sums = lax.associative_scan(add, (begins, rows))[1]
    edges = jnp.searchsorted(ordered, jnp.arange(table.shape[0] + 1, dtype=ordered.dtype))
    last = sums[jnp.maximum(edges[1:] - 1, 0)]
    return jnp.where((edges[1:] > edges[:-1])[:, None], last, 0).astype(table.dtype), None


_rows.defvjp(_forward, _backward)
