"""Conversions of arguments to NumPy arrays, with checks of shapes, dtypes and values."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import COMPLEX, check_floating, check_integers, check_one_per_token, check_rank, dtype_name
from moespec.spec.errors import ContractError, ShapeError

DOUBLE = {np.dtype(np.float64), np.dtype(np.complex128)}
Value = TypeVar("Value")


def present(name: str, value: Value | None) -> Value:
    """Returns `value`. Raises `ContractError` if `value` is None."""
    if value is None:
        raise ContractError(f"{name}: expected a value, got None")
    return value


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Raises `ContractError` if a value is NaN or infinite. The message contains the index of the first invalid value."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ContractError(f"{name}: every value must be finite, but the value at {index} is {array[index]}")


def check_permutation(name: str, order: NDArray[Any]) -> None:
    """Raises `ContractError` unless the 1-D array `order` is a permutation of `0 .. len(order) - 1`."""
    if sorted(order.tolist()) != list(range(len(order))):
        raise ContractError(f"{name}: expected a permutation of 0 to {len(order) - 1}, got {order.tolist()}")


def even(name: str, value: ArrayLike) -> NDArray[Any]:
    """Returns `value` as an array. Raises `ShapeError` if `value` is a nested list with rows of different lengths."""
    try:
        return np.asanyarray(value) if getattr(value, "dtype", None) == np.complex128 else np.asarray(value)
    except ValueError:
        raise ShapeError(f"{name}: expected rows of equal length") from None


def as_array(name: str, value: ArrayLike, axes: str) -> NDArray[Any]:
    """Returns `value` as float64 (complex128 if complex) after `check_floating`, `check_rank` and `check_finite`."""
    array = even(name, value)
    if array.dtype not in DOUBLE:  # fast path: complex-step differentiation calls this often
        check_floating(name, array)
        array = array.astype(np.complex128 if dtype_name(array) in COMPLEX else np.float64)
    check_rank(name, array, axes)
    check_finite(name, array)
    return array


def as_scalar(name: str, value: ArrayLike) -> NDArray[Any]:
    """Returns a scalar as an array (see `as_array`). A Python int is first converted to a float."""
    if type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            bits = value.bit_length()
            raise ContractError(f"{name}: expected a finite number, got an integer of {bits} bits") from None
    return as_array(name, value, "")


def as_order(order: ArrayLike, tokens: int) -> NDArray[np.intp]:
    """Returns `order` as an index array after `check_one_per_token` and `check_permutation`."""
    array = even("order", order)
    check_one_per_token("order", array, (tokens,))
    check_permutation("order", array)
    return array.astype(np.intp)


def as_ids(name: str, value: ArrayLike, axes: str, *, below: int | None = None) -> NDArray[np.int64]:
    """Returns `value` as int64 after `check_integers`. Raises `ContractError` unless all entries are at least 0 and less than `below`."""
    array = even(name, value)
    check_integers(name, array, axes)
    outside = (array < 0) | (array >= (2**63 if below is None else below))
    if outside.any():
        limit = "from 0 to 2^63 - 1" if below is None else f"from 0 to {below - 1}"
        raise ContractError(f"{name}: expected integers {limit}, got {array[outside].flat[0]}")
    return array.astype(np.int64)
