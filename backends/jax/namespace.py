"""The array namespace of JAX, as `moespec.backends.common.namespace` specifies."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax, nn
from jax.extend.random import threefry2x32_p
from jax.scipy import special

from moespec.backends.common.namespace import Function
from moespec.backends.jax import arrays, gathers, positions_in_expert, products, slots
from moespec.backends.jax.arrays import Array

SlotRouting, SoftRouting = slots.SlotRouting, slots.SoftRouting
broadcast_to, cast, concatenate = arrays.broadcast_to, arrays.cast, arrays.concatenate
stop_gradient, top_indices, top_values, promote = (
    arrays.stop_gradient,
    arrays.top_indices,
    arrays.top_values,
    arrays.wide,
)
positions, take_rows = positions_in_expert.positions, gathers.take_rows

abs, clip, cos, exp, log, maximum = jnp.abs, jnp.clip, jnp.cos, jnp.exp, jnp.log, jnp.maximum
sign, sin, sqrt, square, tanh = jnp.sign, jnp.sin, jnp.sqrt, jnp.square, jnp.tanh
where, zeros_like = jnp.where, jnp.zeros_like
erfc, rsqrt = lax.erfc, lax.rsqrt
cumsum, max, mean, stack, sum, swapaxes = jnp.cumsum, jnp.max, jnp.mean, jnp.stack, jnp.sum, jnp.swapaxes
log_softmax, logsumexp, sigmoid = nn.log_softmax, special.logsumexp, nn.sigmoid
softmax, softplus = nn.softmax, nn.softplus


def shift_right_logical(words: Array, bits: int) -> Array:
    """Shifts words right and fills in zeros. `bits` is converted to the dtype of the words, because integers may default to 64 bits."""
    return lax.shift_right_logical(words, words.dtype.type(bits))


def promote_all(*values: Any) -> list[Array]:
    """Converts all arrays to float64 if any array is float64, else to float32."""
    dtype = jnp.result_type(jnp.float32, *(promote(value).dtype for value in values))
    return [jnp.asarray(value).astype(dtype) for value in values]


def full(shape: tuple[int, ...], value: float, like: Array) -> Array:
    """An array of this shape that contains only `value`, in the dtype of `like`."""
    return jnp.full(shape, value, like.dtype)


def arange(start: int, stop: int, like: Array) -> Array:
    """`start, ..., stop - 1` in the dtype of `like`."""
    return jnp.arange(start, stop, dtype=like.dtype)


def eye(count: int, like: Array) -> Array:
    """The identity matrix, in the dtype of `like`."""
    return jnp.eye(count, dtype=like.dtype)


def indices(count: int, like: Array) -> Array:
    """`0, 1, ..., count - 1` in int32."""
    return jnp.arange(count, dtype=jnp.int32)


def argmax(x: Array) -> Array:
    """The int32 index of the largest entry, (..., n) -> (..., 1)."""
    return jnp.argmax(x, axis=-1, keepdims=True).astype(jnp.int32)


def argsort(x: Array) -> Array:
    """The int32 indices that sort the entries in ascending order, (..., n) -> (..., n)."""
    return jnp.argsort(x, axis=-1, stable=True).astype(jnp.int32)


def take(x: Array, index: Array) -> Array:
    """The entries of `x` at the indices, (..., n) and (..., k) -> (..., k)."""
    return jnp.take_along_axis(x, index, axis=-1)


def pick(x: Array, index: Array) -> Array:
    """The entry of `x` at an index, (..., n) and (..., 1) -> (..., 1). Uses a mask, so that the gradient does not need a scatter."""
    position = jnp.arange(x.shape[-1], dtype=index.dtype)
    return jnp.sum(jnp.where(position == index, x, 0), axis=-1, keepdims=True)


def is_chosen(indices: Array, like: Array) -> Array:
    """Returns booleans that are true at the indices, (..., k) -> (..., n). Uses comparisons instead of a scatter."""
    return jnp.any(indices[..., None] == jnp.arange(like.shape[-1], dtype=indices.dtype), axis=-2)


def count(index: Array, size: int, like: Array) -> Array:
    """Counts how often each of the numbers 0, ..., size - 1 occurs, as an array (size,) in the dtype of `like`."""
    return jnp.zeros(size, like.dtype).at[index.reshape(-1)].add(1)


def put_true(indices: Array, like: Array, axis: int) -> Array:
    """Returns a boolean array in the shape of `like`: true at `indices` along an axis, and false elsewhere."""
    return jnp.put_along_axis(jnp.zeros(like.shape, bool), indices, True, axis=axis, inplace=False)


def largest(x: Array, count: int) -> tuple[Array, Callable[[Callable[[Array], Array]], Array]]:
    """Returns the `count` largest entries in descending order, and `place`, which applies a function to these entries through a mask."""
    if count == x.shape[-1]:
        return -jnp.sort(-x, axis=-1), lambda function: function(x)
    index = top_indices(x, count)
    descending = jnp.take_along_axis(x, index, axis=-1)
    # Several entries may equal the smallest selected entry. Of these, the mask keeps the entries up to index `last`. `position == last`
    # keeps the entry at `last` even if XLA recomputes `x` for the comparison with different rounding.
    position = jnp.arange(x.shape[-1], dtype=index.dtype)
    smallest, last = descending[..., -1:], index[..., -1:]
    mask = (x > smallest) | ((x == smallest) & (position <= last)) | (position == last)
    return descending, lambda function: jnp.where(mask, function(x), 0)


def product(x: Array, matrix: Array) -> Array:
    """(G, T, D) and (D, S) -> (G, T, S), at the highest precision of the device."""
    result: Array = lax.platform_dependent(promote(x), promote(matrix), tpu=_product, default=_flat_product)
    return result


def _product(x: Array, matrix: Array) -> Array:
    return jnp.einsum("gtd,de->gte", x, matrix, precision=lax.Precision.HIGHEST)


def _flat_product(x: Array, matrix: Array) -> Array:
    """Computes a single matrix product, so that XLA on CPUs and GPUs also computes gradients as matrix products (see `network.linear`)."""
    groups, count, width = x.shape
    flat = jnp.matmul(x.reshape(-1, width), matrix, precision=lax.Precision.HIGHEST)
    return flat.reshape(groups, count, -1)


def scaled_product(tokens: Array, x: Array, slots: Array, rows: Array | None, columns: Array | None) -> Array:
    """`(rows * x) (columns * slots)`: (G, T, D), (D, E, C), (G, T, 1), (1, E, C) -> (G, T, E, C).

    For bfloat16 tokens, a TPU computes half as many bfloat16 products as for float32 tokens.
    """
    slots = slots if columns is None else slots * columns
    rows = jnp.ones((*x.shape[:2], 1), x.dtype) if rows is None else rows
    if jnp.result_type(tokens) == jnp.bfloat16 and slots.dtype == jnp.float32:
        return products.scaled_product(x, rows, slots)
    logits = jnp.einsum("gtd,dec->gtec", rows * x, slots, precision=lax.Precision.HIGHEST)
    # Otherwise XLA on a CPU computes the logits again for each softmax.
    kept: Array = lax.optimization_barrier(logits)  # type: ignore[no-untyped-call]
    return kept


def invert_index(index: Array, count: int) -> Array:
    """For each number below `count`, its position in `index`, or n if the number is absent, (G, n) -> (G, count)."""
    number = lax.broadcasted_iota(jnp.int32, index.shape, 1)
    return positions_in_expert.invert(index, number, count, fill=index.shape[1])


def slot_weights(scores: Array, token: Array, slot: Array | None) -> Array:
    """The score of each slot's token for the slot's expert, or 0 for an empty slot, (G, T, E) -> (G, E, C)."""
    return gathers.slot_weights(scores.shape[1], scores, token, slot)


def by_expert(routing: slots.SlotRouting, values: Array) -> Array:
    """Puts the value of each slot at the slot's token and expert, and 0 elsewhere, (G, E, C) -> (G, T, E)."""
    return gathers.values_by_expert(routing.tokens, values, routing.token, routing.slot)


def loop(count: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Repeats `state = body(step, state)` for the steps 0, ..., count - 1, in a loop of the compiled program."""
    return lax.fori_loop(0, count, body, state)


def whole(function: Function) -> Function:
    """Returns `function` unchanged, because XLA does not unroll loops."""
    return function


def threefry(key: Array, first: Array, second: Array) -> Array:
    """Threefry-2x32-20, computed by a JAX primitive that compiles differently for each device. Words are int32."""
    (low, high), *counter = (
        lax.bitcast_convert_type(word, jnp.uint32) for word in (key, *jnp.broadcast_arrays(first, second))
    )
    words = threefry2x32_p.bind(low, high, *counter)  # type: ignore[no-untyped-call]
    return lax.bitcast_convert_type(jnp.stack(words, axis=-1), jnp.int32)
