"""Dispatches and combines the rows of small groups on a TPU by products with one-hot rows instead of gathers.

A TPU reads a tile of eight rows for each gathered row. A product with the one-hot rows of the slots reads each row
once, at the cost of 2 S T D additional operations for S slots and T tokens. The product is exact in bfloat16, because a TPU adds the
terms in float32. On other devices, and in larger groups, rows are gathered.

Shape comments: G groups, T tokens, E experts, C capacity, D width; R = E G C rows in the order (E, G, C).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.derivatives import bilinear, linear
from moespec.backends.jax.gathers import combine_rows, dispatch_rows, sum_by_token, take_rows
from moespec.backends.jax.products import in_three_parts

SMALL, FEW = 256, 4
"""The largest numbers of tokens per group and of slots per token at which products move fewer bytes than gathers (docs/speed.md)."""


def pays(tokens: Array, token: Array) -> bool:
    """True if programs for a TPU use products instead of gathers for tokens (G, T, D) and slots (G, E, C)."""
    _, count, _ = tokens.shape
    return tokens.dtype == jnp.bfloat16 and count <= SMALL and token.shape[1] * token.shape[2] <= FEW * count


def dispatch(tokens: Array, token: Array, slots: Any) -> Array:
    """The row of each slot's token, or 0 for an empty slot: tokens (G, T, D), token (G, E, C), slots (`Rows` of `token`) -> (R, D)."""
    return linear(_dispatch, partial(_dispatch_transposed, tokens.shape), (token, slots), (tokens,))[0]


def _dispatch(ends: Any, tokens: Array) -> tuple[Array]:
    return (_of_device(_rows, _gathered, tokens, *ends),)


def _dispatch_transposed(shape: tuple[int, ...], ends: Any, cotangent: Array) -> tuple[Array]:
    whole = partial(_tokens, count=shape[1])
    return (_of_device(whole, partial(_sums, shape=shape), cotangent, *ends),)


def _of_device(product: Any, gather: Any, *arrays: Any) -> Array:
    result: Array = lax.platform_dependent(*arrays, tpu=product, default=gather)
    return result


def _gathered(tokens: Array, token: Array, slots: Any) -> Array:
    groups, count, width = tokens.shape
    return dispatch_rows(groups * count, tokens.reshape(1, -1, width), slots.token, slots.row)[0]


def _sums(cotangent: Array, token: Array, slots: Any, *, shape: tuple[int, ...]) -> Array:
    groups, count, _ = shape
    return sum_by_token(groups * count, cotangent[None], None, slots.token, slots.row).reshape(groups, count, -1)


def _one_hot(token: Array, count: int) -> Array:
    """The one-hot rows of slots, (G, E, C) -> (G, E, C, T), with zeros for an empty slot."""
    return jax.nn.one_hot(token, count, dtype=jnp.bfloat16)


def _rows(tokens: Array, token: Array, slots: Any) -> Array:
    rows = jnp.einsum("gect,gtd->egcd", _one_hot(token, tokens.shape[1]), tokens)
    return rows.reshape(-1, tokens.shape[2])


def _tokens(rows: Array, token: Array, slots: Any, *, count: int) -> Array:
    groups, experts, capacity = token.shape
    by_slot = rows.reshape(experts, groups, capacity, -1)
    y = jnp.einsum("gect,egcd->gtd", _one_hot(token, count), by_slot, preferred_element_type=jnp.float32)
    return y.astype(rows.dtype)


def combine(count: int, rows: Array, weight: Array, token: Array, slots: Any) -> Array:
    """The weighted sum of the rows of each token's slots: rows (R, D), weight (1, R), token (G, E, C) -> (G, T, D), with T = `count`."""
    return bilinear(partial(_combine, count), _combine_transposed, (token, slots), rows, weight)[0]


def _combine(count: int, ends: Any, rows: Array, weight: Array) -> tuple[Array]:
    return (_of_device(partial(_weighted, count=count), partial(_combined, count=count), rows, weight, *ends),)


def _combine_transposed(ends: Any, rows: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    incoming = wide(_of_device(_rows, _gathered, cotangent, *ends))
    to_rows = (incoming * weight[0, :, None].astype(incoming.dtype)).astype(rows.dtype)
    return to_rows, jnp.sum(incoming * wide(rows), axis=1).astype(weight.dtype)[None]


def _combined(rows: Array, weight: Array, token: Array, slots: Any, *, count: int) -> Array:
    y = combine_rows(len(token) * count, rows[None], weight, slots.token, slots.row)
    return y.reshape(len(token), count, -1)


def _weighted(rows: Array, weight: Array, token: Array, slots: Any, *, count: int) -> Array:
    groups, experts, capacity = token.shape
    by_slot = rows.reshape(experts, groups, capacity, -1)
    chosen = _one_hot(token, count)
    if slots.row is not None and slots.row.shape[2] == 1:
        y = jnp.einsum("gect,egcd->gtd", chosen, by_slot, preferred_element_type=jnp.float32)
        y = y * take_rows(weight, slots.row).reshape(groups, count, 1)
    else:
        weights = jnp.swapaxes(weight.reshape(experts, groups, capacity), 0, 1)
        parts = in_three_parts(chosen * weights[..., None])
        same = jnp.broadcast_to(by_slot, (3, *by_slot.shape))
        y = jnp.einsum("pgect,pegcd->gtd", parts, same, preferred_element_type=jnp.float32)
    return y.astype(rows.dtype)
