"""Requests for experts: the position of each request among all requests for the same expert, and the map from slots to requests.

Shape comments: G groups, N requests, E experts.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array

ONE_HOT_EXPERTS = 32
"""The largest number of experts for which `positions` uses a one-hot cumulative sum instead of a sort."""


def positions(requests: Array, experts: int) -> Array:
    """Counts, for each request, the earlier requests in the same group for the same expert, (G, N) int32 -> (G, N) int32."""
    return (position_by_sum if experts <= ONE_HOT_EXPERTS else position_by_sort)(requests, experts)


def position_by_sum(requests: Array, experts: int) -> Array:
    """Computes `positions` with a cumulative sum of one-hot rows (G, N, E)."""
    one_hot = (requests[..., None] == jnp.arange(experts, dtype=requests.dtype)).astype(jnp.int32)
    return jnp.sum((jnp.cumsum(one_hot, axis=1) - 1) * one_hot, axis=2)


def position_by_sort(requests: Array, experts: int) -> Array:
    """Computes `positions` with a stable sort of the expert ids."""
    number = lax.broadcasted_iota(jnp.int32, requests.shape, 1)
    by_expert, source = lax.sort((requests, number), dimension=1, num_keys=1, is_stable=True)
    is_first = jnp.concatenate(
        [jnp.ones_like(by_expert[:, :1], dtype=bool), by_expert[:, 1:] != by_expert[:, :-1]], axis=1
    )
    first = lax.cummax(jnp.where(is_first, number, 0), axis=1)
    return invert(source, number - first, requests.shape[1], fill=0)


def invert(index: Array, value: Array, size: int, *, fill: int) -> Array:
    """Sets `out[g, index[g, n]] = value[g, n]`, and `fill` elsewhere, (G, N) -> (G, size). An index equal to `size` writes nothing."""
    # Replaces each index `size` with a different index past the end, so that all indices are unique.
    index = jnp.where(index < size, index, size + lax.broadcasted_iota(jnp.int32, index.shape, 1))
    empty = jnp.full((size,), fill, value.dtype)
    return jax.vmap(lambda i, v: empty.at[i].set(v, mode="drop", unique_indices=True))(index, value)
