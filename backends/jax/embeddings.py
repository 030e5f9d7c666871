"""Embedding of tokens. `embedding` does not check the values of ids. The result for an id outside the table is undefined."""

from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from moespec.backends.jax.arrays import wide
from moespec.backends.jax.derivatives import linear
from moespec.backends.jax.explicit import by_groups
from moespec.spec.checks import check_integers, check_scores

__all__ = ["embedding"]


@by_groups({"ids": "group"})
def embedding(ids: Array, table: Array) -> Array:
    """ids (N, S), table (V, D) -> (N, S, D)."""
    check_integers("ids", ids, "groups tokens")
    check_scores("table", table, "ids width")
    return linear(_rows, partial(_transposed, len(table)), jnp.asarray(ids), (jnp.asarray(table),))[0]


def _rows(ids: Array, table: Array) -> tuple[Array]:
    return (table[ids],)


def _transposed(count: int, ids: Array, cotangent: Array) -> tuple[Array]:
    """Sums the rows of tokens with the same id, in float32 or better and in a fixed order. On GPUs, uses a scan instead of a scatter."""
    rows = wide(cotangent.reshape(-1, cotangent.shape[-1]))
    by_scan, by_scatter = (partial(each, count) for each in (_sums_by_scan, _sums_by_scatter))
    flat = ids.reshape(-1)
    sums: Array = lax.platform_dependent(rows, flat, cuda=by_scan, rocm=by_scan, default=by_scatter)
    return (sums.astype(cotangent.dtype),)


def _sums_by_scatter(count: int, rows: Array, ids: Array) -> Array:
    return jnp.zeros((count, rows.shape[1]), rows.dtype).at[ids].add(rows)


def _sums_by_scan(count: int, rows: Array, ids: Array) -> Array:
    """Groups rows by id with a stable sort, and adds each group with a scan, because a scatter on a GPU adds in no fixed order."""
    order = jnp.argsort(ids, stable=True)
    ordered = ids[order]
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])

    def add(before: tuple[Array, Array], after: tuple[Array, Array]) -> tuple[Array, Array]:
        return before[0] | after[0], jnp.where(after[0][:, None], after[1], before[1] + after[1])

    sums = lax.associative_scan(add, (begins, rows[order]))[1]
    edges = jnp.searchsorted(ordered, jnp.arange(count + 1, dtype=ordered.dtype))
    return jnp.where((edges[1:] > edges[:-1])[:, None], sums[jnp.maximum(edges[1:] - 1, 0)], 0)
