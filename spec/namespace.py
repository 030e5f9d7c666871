"""The array namespace of the specification: what routers of the user's own compute with, besides the building blocks.

The names are those of `moespec.backends.common.namespace`, with which a backend has more; they mean the same there. Results hold under the
complex step (see `numerics`).
"""

from typing import Any

import numpy as np

from moespec.spec import numerics

Array = Any

cos, exp, log, sin, sqrt, square, tanh = np.cos, np.exp, np.log, np.sin, np.sqrt, np.square, np.tanh
cumsum, mean, sum, where, zeros_like = np.cumsum, np.mean, np.sum, np.where, np.zeros_like
broadcast_to, concatenate, stack, swapaxes = np.broadcast_to, np.concatenate, np.stack, np.swapaxes
sigmoid, softmax, softplus, stop_gradient = (
    numerics.sigmoid,
    numerics.softmax,
    numerics.softplus,
    numerics.stop_gradient,
)


def promote(x: Array) -> Array:
    """`x` in float64."""
    return np.asarray(x, np.result_type(x, np.float64))


def full(shape: tuple[int, ...], value: float, like: Array) -> Array:
    """The value everywhere."""
    return np.full(shape, value, like.real.dtype)


def arange(start: int, stop: int, like: Array) -> Array:
    """`start, ..., stop - 1` as floating numbers."""
    return np.arange(start, stop, dtype=like.real.dtype)


def abs(x: Array) -> Array:
    """The absolute value."""
    return np.where(x.real < 0, -x, x)


def clip(x: Array, low: float, high: float) -> Array:
    """`x`, at least `low` and at most `high`."""
    return np.where(x.real > high, high, maximum(x, low))


def maximum(x: Array, least: float) -> Array:
    """`x`, at least `least`."""
    return np.where(x.real < least, least, x)


def rsqrt(x: Array) -> Array:
    """`1 / sqrt(x)`."""
    return 1 / np.sqrt(x)


def sign(x: Array) -> Array:
    """-1, 0 or 1."""
    return np.sign(x.real)


def logsumexp(x: Array, axis: int, *, keepdims: bool = False) -> Array:
    """The logarithm of the sum of the exponentials."""
    result = numerics.logsumexp(x, axis)
    return np.expand_dims(result, axis) if keepdims else result


def log_softmax(x: Array, axis: int) -> Array:
    """The logarithm of the softmax."""
    return x - logsumexp(x, axis, keepdims=True)


def max(x: Array, axis: int, *, keepdims: bool = False) -> Array:
    """The largest entry."""
    largest = np.take_along_axis(x, np.argmax(x.real, axis, keepdims=True), axis)
    return largest if keepdims else np.squeeze(largest, axis)


def top_indices(x: Array, count: int) -> Array:
    """The indices of the `count` largest entries along the last axis, descending: among equals the first comes first."""
    return numerics.stable_order(x)[..., :count]


def top_values(x: Array, count: int) -> Array:
    """The `count` largest entries along the last axis, descending, as constants."""
    return take(x.real, top_indices(x, count))


def take(x: Array, index: Array) -> Array:
    """The entries at a few indices: (..., n) and (..., k) -> (..., k)."""
    return np.take_along_axis(x, index, -1)
