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
    """`x` in float32 or better: float64 stays, narrower types become float32."""
    array: Array = jnp.asarray(x)
    return array.astype(jnp.float64 if array.dtype == jnp.float64 else jnp.float32)


def arange(count: int, like: Array) -> Array:
    """`0, 1, ..., count - 1` in float64 if `like` is float64, else in float32."""
    return jnp.arange(count, dtype=jnp.float64 if like.dtype == jnp.float64 else jnp.float32)


def cast(x: Array, dtype: Any) -> Array:
    """`x` in another dtype, given by name or as an array's `.dtype`."""
    return jnp.asarray(x).astype(dtype)


def round_to_bfloat16(x: Array) -> Array:
    """`x` rounded to the nearest bfloat16 numbers, in the dtype of `x`. Gradients are rounded in the same way."""
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """`arrays` joined along an existing axis."""
    return jnp.concatenate(split_alike(arrays), axis=axis)


def broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    """`x` repeated along its axes of length 1 until it has `shape`."""
    return jnp.broadcast_to(x, tuple(shape))


def einsum(subscripts: str, /, *arrays: Array) -> Array:
    """Einstein summation."""
    return jnp.einsum(subscripts, *arrays)


def transpose(x: Array, axes: Sequence[int]) -> Array:
    """`x` with its axes in this order."""
    return jnp.transpose(x, tuple(axes))


def mean(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Mean along `axis` (one or several), or over all entries."""
    return jnp.mean(x, axis=axis if axis is None or isinstance(axis, int) else tuple(axis))


def sum(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Sum along `axis` (one or several), or over all entries."""
    return jnp.sum(x, axis=axis if axis is None or isinstance(axis, int) else tuple(axis))


def softmax(x: Array, axis: int) -> Array:
    """`exp(x) / sum(exp(x))` along `axis`, in the dtype of `x`."""
    return jax.nn.softmax(x, axis=axis)


def top_indices(scores: Array, count: int) -> Array:
    """Indices of the `count` largest entries along the last axis, int32: descending, the lower index among equals."""
    # `lax.top_k` orders -0.0 below 0.0, but these scores are equal.
    return _top(jnp.where(scores == 0, jnp.zeros_like(scores), scores), count)[1]


def top_values(scores: Array, count: int) -> Array:
    """The `count` largest entries along the last axis, descending. The entries carry no gradient."""
    return _top(scores, count)[0]


def _top(scores: Array, count: int) -> tuple[Array, Array]:
    # Without a barrier, XLA merges a later slice of a result with its own slice, and then sorts all entries. With a single barrier for
    # values and indices, XLA fails for several devices, because it takes both for the sort.
    values, indices = lax.top_k(lax.stop_gradient(scores), count)
    return lax.optimization_barrier(values), lax.optimization_barrier(indices)  # type: ignore[no-untyped-call]


@contextmanager
def with_dtype(dtype: str) -> Iterator[None]:
    """A context for computing in `dtype`. It enables JAX's float64 for "float64" and disables TF32 for float32."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        yield


def from_numpy(tree: Any, dtype: str | None = None) -> Any:
    """Converts nested dicts, lists and tuples of NumPy arrays (or numbers) to arrays of this backend; None stays None.

    `dtype` ("float64", "float32", "bfloat16"), if given, applies to floating leaves; other leaves keep their dtype. Arrays are copied.
    float64 needs `with_dtype("float64")` or the caller's `jax.enable_x64`; otherwise JAX stores float32.
    """

    def convert(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        # `jnp.array` compiles a copy for each shape. `device_put` may reuse the memory of its argument.
        moved: Array = jax.device_put(np.array(leaf, dtype=dtype if floating else None, copy=True))
        return moved

    return jax.tree.map(convert, tree)


def to_numpy(tree: Any) -> Any:
    """The reverse of `from_numpy`. bfloat16 becomes float32, because NumPy has no bfloat16."""

    def convert(leaf: Any) -> np.ndarray:
        return np.array(leaf, dtype=np.float32 if jnp.result_type(leaf) == jnp.bfloat16 else None)

    return jax.tree.map(convert, tree)
