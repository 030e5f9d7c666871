"""The array operations that models need, in float64 (complex for the complex step), and conversion to and from NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.pytrees import tree_map
from moespec.spec import numerics
from moespec.spec.errors import ConfigError

__all__ = [
    "arange",
    "broadcast_to",
    "cast",
    "checks_values",
    "concatenate",
    "cos",
    "einsum",
    "from_numpy",
    "linear",
    "mean",
    "relu",
    "round_to_bfloat16",
    "sin",
    "softmax",
    "sum",
    "tanh",
    "to_numpy",
    "transpose",
]

Array = NDArray[Any]

checks_values = True
"""NaN and infinity are errors, as in the specification. Compiled backends do not check values."""


def from_numpy(tree: Any, dtype: str | None = None) -> Any:
    """Converts floating arrays in a nested dict, list or tuple to float64; integers, complex arrays and None do not change.

    Raises ConfigError for a dtype other than "float64" or None: this backend computes only in float64.
    """
    _check_dtype(dtype)
    return tree_map(_as_float64, tree)


def to_numpy(tree: Any) -> Any:
    """Returns the same arrays, which need no conversion."""
    return tree_map(np.asarray, tree)


def cast(x: Array, dtype: str) -> Array:
    """Converts `x` to "float64" or "int32". Raises ConfigError for any other dtype."""
    if dtype == "int32":
        return x.real.astype(np.int32)
    _check_dtype(dtype)
    return _as_float64(x) if x.dtype.kind in "fc" else x.astype(np.float64)


def round_to_bfloat16(x: Array) -> Array:
    """Rounds to 8 significant bits, ties to even. Gradients are not rounded."""
    fraction, exponent = np.frexp(x.real)
    rounded: Array = np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)
    return rounded + 1j * x.imag if x.dtype.kind == "c" else rounded


def einsum(subscripts: str, *arrays: Array) -> Array:
    """Einstein summation."""
    # For small arrays, the search for a BLAS call takes longer than the contraction itself.
    result: Array = np.einsum(subscripts, *arrays, optimize=arrays[0].size > 4096)
    return result


def linear(x: Array, kernel: Array, bias: Array | None = None, *, axes: int = 1) -> Array:
    """`x kernel + bias`: x (..., *A), kernel (*A, *B), bias (*B) -> (..., *B), where A has `axes` axes."""
    y = np.tensordot(x, kernel, axes)
    return y if bias is None else y + bias


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """`arrays` joined along `axis`."""
    return np.concatenate(arrays, axis=axis)


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` repeated to `shape`."""
    return np.broadcast_to(x, shape)


def transpose(x: Array, axes: Sequence[int]) -> Array:
    """Permutes the axes of `x` to the order `axes`."""
    return np.transpose(x, axes)


def mean(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Mean over `axis` (all axes if None)."""
    result: Array = np.mean(x, axis=axis)  # type: ignore[assignment]
    return result


def sum(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Sum over `axis` (all axes if None)."""
    result: Array = np.sum(x, axis=axis)
    return result


def arange(count: int, like: Array) -> Array:
    """`0, 1, ..., count - 1` in float64."""
    return np.arange(count, dtype=np.float64)


def sin(x: Array) -> Array:
    """Sine."""
    return np.sin(x)


def cos(x: Array) -> Array:
    """Cosine."""
    return np.cos(x)


def relu(x: Array) -> Array:
    """`x` where the real part of `x` is above 0, else 0."""
    return np.where(x.real > 0, x, 0)


def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.tanh(x)


def softmax(x: Array, axis: int = -1) -> Array:
    """Softmax along `axis`."""
    return numerics.softmax(x, axis)


def _as_float64(array: Any) -> Any:
    array = np.asarray(array)
    # ml_dtypes gives bfloat16 the kind "V", but it is a floating dtype.
    is_floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64, copy=False) if is_floating else array


def _check_dtype(dtype: str | None) -> None:
    if dtype not in (None, "float64"):
        raise ConfigError(f"dtype={dtype!r}: the numpy backend computes in float64 only")
