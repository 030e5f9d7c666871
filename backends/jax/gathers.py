"""Moves rows between tokens and slots with gathers. The gradient of a gather in one direction is a gather in the other direction.

Shape comments: G groups, T tokens, E experts, C capacity, K choices, D width, S = E * C slots. Slot `c` of expert `e` has the
index `e * C + c`. The slot index S means no slot, and the token index T means no token.

A sparse routing is a partial map between tokens and slots. The array `token` (G, S) maps slots to tokens, and `slot` (G, T, K) maps tokens
to slots. A gather with one array moves rows, and a gather with the other array moves gradients. In Expert Choice, a token may occupy any
number of slots, and `slot` is None. For such a routing, a loop of gathers adds the slots of each token one by one, in ascending order.
No sum uses a scatter. Each sum has a fixed order, so the same input gives the same bits on every run, even on a GPU.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.derivatives import bilinear, linear
from moespec.backends.jax.programs import program

Ends = tuple[Array, Array | None]


@program
def take_rows(rows: Array, index: Array, fill: bool = True) -> Array:
    """Returns `rows[g, index[g, ...]]`, or 0 where the index is N (without `fill`, any row), for rows (G, N, ...) and index (G, ...).

    The index of each group is flattened to one axis, because a TPU pads a last axis of length 2 to length 128.
    """
    flat = index.reshape(len(index), math.prod(index.shape[1:]))
    how: Any = {"mode": "fill", "fill_value": 0} if fill else {"mode": "clip"}
    taken: Array = jax.vmap(lambda row, i: row.at[i].get(**how))(rows, flat)
    return taken.reshape(*index.shape, *rows.shape[2:])


@program
def values_by_expert(tokens: int, values: Array, token: Array, slot: Array | None) -> Array:
    """The value of each token's slot at each expert, or 0 if the token has no slot there, (G, E, C) -> (G, T, E)."""
    groups, experts, capacity = values.shape
    if slot is not None:
        # A mask, instead of a scatter, puts the value of each choice at the chosen expert.
        chosen = slot[..., None] // capacity == jnp.arange(experts, dtype=slot.dtype)
        taken = take_rows(values.reshape(groups, experts * capacity), slot)
        return jnp.sum(jnp.where(chosen, taken[..., None], 0), axis=2)
    # All indices are unique: an expert chooses each token at most once, and each empty slot gets a different index past the end.
    own = jnp.arange(experts * capacity, dtype=token.dtype).reshape(experts, capacity)
    row = jnp.where(token < tokens, token, tokens + own)
    expert = jnp.arange(experts, dtype=token.dtype)[:, None]
    zeros = jnp.zeros((tokens, experts), values.dtype)
    return jax.vmap(lambda r, v: zeros.at[r, expert].set(v, mode="drop", unique_indices=True))(row, values)


def slot_weights(tokens: int, scores: Array, token: Array, slot: Array | None) -> Array:
    """The score of each slot's token for the slot's expert, or 0 for an empty slot, (G, T, E) -> (G, E, C)."""
    return linear(_slot_weights, partial(_slot_weights_transposed, tokens), (token, slot), (scores,))[0]


def _slot_weights(ends: Ends, scores: Array) -> tuple[Array]:
    groups, tokens, experts = scores.shape
    # Joins the token and expert axes, because a TPU would read a whole tile for each score if experts were a separate axis.
    own = ends[0] * experts + jnp.arange(experts, dtype=ends[0].dtype)[:, None]
    return (take_rows(scores.reshape(groups, tokens * experts), own),)


def _slot_weights_transposed(tokens: int, ends: Ends, cotangent: Array) -> tuple[Array]:
    return (values_by_expert(tokens, cotangent, *ends),)


def dispatch_rows(tokens: int, rows: Array, token: Array, slot: Array | None, *, fill: bool = True) -> Array:
    """The row of each slot's token, or 0 (without `fill`, any row) for an empty slot, (G, T, D) -> (G, S, D)."""
    return linear(partial(_dispatch, fill), partial(_dispatch_transposed, tokens), (token, slot), (rows,))[0]


def _dispatch(fill: bool, ends: Ends, rows: Array) -> tuple[Array]:
    return (take_rows(rows, ends[0], fill),)


def _dispatch_transposed(tokens: int, ends: Ends, cotangent: Array) -> tuple[Array]:
    return (sum_by_token(tokens, cotangent, None, *ends),)


def combine_rows(
    tokens: int, rows: Array, weight: Array, token: Array, slot: Array | None, *, fill: bool = True
) -> Array:
    """The weighted sum of the rows of each token's slots, (G, S, D) and (G, S) -> (G, T, D).

    Without `fill`, the gradient of an empty slot is undefined: nothing may read it.
    """
    transposed = partial(_combine_transposed, fill)
    return bilinear(partial(_combine, tokens), transposed, (token, slot), rows, weight)[0]


def _combine(tokens: int, ends: Ends, rows: Array, weight: Array) -> tuple[Array]:
    return (sum_by_token(tokens, rows, weight, *ends),)


def _combine_transposed(fill: bool, ends: Ends, rows: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    incoming = wide(take_rows(cotangent, ends[0], fill))
    to_rows = (incoming * weight[..., None].astype(incoming.dtype)).astype(rows.dtype)
    return to_rows, jnp.sum(incoming * wide(rows), axis=2).astype(weight.dtype)


@program
def sum_by_token(tokens: int, rows: Array, weight: Array | None, token: Array, slot: Array | None) -> Array:
    """The sum of the rows of each token's slots, weighted unless `weight` is None, in float32 or better, (G, S, D) -> (G, T, D)."""

    def take(index: Array) -> Array:
        taken = wide(take_rows(rows, index))
        return taken if weight is None else taken * take_rows(weight, index)[..., None].astype(taken.dtype)

    if slot is not None:
        return jnp.sum(take(slot), axis=2).astype(rows.dtype)
    groups, slots = token.shape
    by_token = jnp.argsort(token, axis=1, stable=True).astype(jnp.int32)
    count = jax.vmap(lambda t: jnp.zeros(tokens, jnp.int32).at[t].add(1, mode="drop"))(token)
    first = jnp.cumsum(count, axis=1) - count

    def add(rank: Array, total: Array) -> Array:
        index = take_rows(by_token, first + rank)
        return total + take(jnp.where(rank < count, index, slots))

    zeros = wide(jnp.zeros((groups, tokens, rows.shape[2]), rows.dtype))
    total: Array = lax.fori_loop(0, jnp.max(count), add, zeros)
    return total.astype(rows.dtype)
