"""The array operations that models need, and conversion from and to NumPy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from moespec.backends.jax.explicit import split_alike

__all__ = [
    "arange",
    "broadcast_to",
    "cast",
    "concatenate",
    "cos",
    "einsum",
    "from_numpy",
    "mean",
    "relu",
    "round_to_bfloat16",
    "sin",
    "softmax",
    "stop_gradient",
    "sum",
    "tanh",
    "to_numpy",
    "transpose",
    "with_dtype",
]

Array = jax.Array

cos = jnp.cos
sin = jnp.sin
tanh = jnp.tanh
relu = jax.nn.relu
stop_gradient = lax.stop_gradient


def wide(x: Any) -> Array:
    """Converts `x` to float32 unless the dtype of `x` is float64."""
    array: Array = jnp.asarray(x)
    return array.astype(jnp.float64 if array.dtype == jnp.float64 else jnp.float32)


def arange(count: int, like: Array) -> Array:
    """`0, 1, ..., count - 1` in float64 if `like` is float64, else in float32."""
    return jnp.arange(count, dtype=jnp.float64 if like.dtype == jnp.float64 else jnp.float32)


def cast(x: Array, dtype: Any) -> Array:
    """Converts `x` to a dtype, given as a name or as the `.dtype` of an array."""
    return jnp.asarray(x).astype(dtype)


def round_to_bfloat16(x: Array) -> Array:
    """Rounds `x` to the nearest bfloat16 numbers and keeps the dtype. Gradients are rounded in the same way."""
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Joins arrays along an existing axis."""
    return jnp.concatenate(split_alike(arrays), axis=axis)


def broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    """Broadcasts `x` to `shape` along axes of length 1."""
    return jnp.broadcast_to(x, tuple(shape))


def einsum(subscripts: str, /, *arrays: Array) -> Array:
    """Einstein summation."""
    return jnp.einsum(subscripts, *arrays)


def transpose(x: Array, axes: Sequence[int]) -> Array:
    """Permutes the axes of `x` to the order `axes`."""
    return jnp.transpose(x, tuple(axes))


def mean(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """The mean along one axis or several axes, or over all entries if `axis` is None."""
    return jnp.mean(x, axis=axis if axis is None or isinstance(axis, int) else tuple(axis))


def sum(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """The sum along one axis or several axes, or over all entries if `axis` is None."""
    return jnp.sum(x, axis=axis if axis is None or isinstance(axis, int) else tuple(axis))


def softmax(x: Array, axis: int) -> Array:
    """`exp(x) / sum(exp(x))` along `axis`, in the dtype of `x`."""
    return jax.nn.softmax(x, axis=axis)


def top_indices(scores: Array, count: int) -> Array:
    """The int32 indices of the `count` largest entries along the last axis, in descending order. Ties go to the lower index."""
    # `lax.top_k` orders -0.0 below 0.0, but these scores are equal.
    return _top(jnp.where(scores == 0, jnp.zeros_like(scores), scores), count)[1]


def top_values(scores: Array, count: int) -> Array:
    """The `count` largest entries along the last axis, in descending order and without gradient."""
    return _top(scores, count)[0]


def _top(scores: Array, count: int) -> tuple[Array, Array]:
    # Without a barrier, XLA merges a later slice of the result with the slice of top_k, and then sorts all entries. With a single barrier
    # for values and indices, XLA mistakes the barrier for the sort and fails on several devices.
    values, indices = lax.top_k(lax.stop_gradient(scores), count)
    return lax.optimization_barrier(values), lax.optimization_barrier(indices)  # type: ignore[no-untyped-call]


@contextmanager
def with_dtype(dtype: str) -> Iterator[None]:
    """A context for computations in `dtype`. For "float64", the context enables float64 in JAX. Float32 products never use TF32."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        yield


def from_numpy(tree: Any, dtype: str | None = None) -> Any:
    """Copies NumPy arrays and numbers in nested dicts, lists and tuples to JAX arrays. None stays None.

    `dtype` ("float64", "float32", "bfloat16") applies only to floating-point leaves. `dtype=None` keeps the dtype of each leaf.
    JAX stores float64 arrays as float32, except in the context `with_dtype("float64")` or `jax.enable_x64`.
    """

    def convert(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        # `jnp.array` would compile a program per shape. `device_put` may share memory with the argument, so NumPy copies the array.
        moved: Array = jax.device_put(np.array(leaf, dtype=dtype if floating else None, copy=True))
        return moved

    return jax.tree.map(convert, tree)


def to_numpy(tree: Any) -> Any:
    """Copies arrays to NumPy, the inverse of `from_numpy`. bfloat16 arrays become float32, because NumPy has no bfloat16."""

    def convert(leaf: Any) -> np.ndarray:
        return np.array(leaf, dtype=np.float32 if jnp.result_type(leaf) == jnp.bfloat16 else None)

    return jax.tree.map(convert, tree)
