"""Checks of the arguments of public functions: shapes and dtypes of arrays, and Python numbers.

Array checks read only `.shape` and `.dtype`, so a compiled backend can call these checks during tracing. The module `values`
contains the checks that read the values of arrays. Every error message names the invalid argument.
"""

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np

from moespec.spec.errors import ConfigError, DtypeError, ShapeError
from moespec.spec.names import near_it

FLOATING = ("float64", "float32", "float16", "bfloat16")
COMPLEX = ("complex128", "complex64")


def dtype_name(array: Any) -> str:
    """The name of the dtype of `array`, such as `float32`, without the prefix `torch.`. Without a dtype, the name of the object's type."""
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of an array, or `()` for an object without a shape."""
    return tuple(getattr(array, "shape", ()))


def check_floating(name: str, array: Any) -> None:
    """Raises `DtypeError` unless the dtype is floating (or complex, which the complex step needs)."""
    if dtype_name(array) not in FLOATING + COMPLEX:
        raise DtypeError(f"{name}: expected a floating dtype ({', '.join(FLOATING)}), got {dtype_name(array)}")


def check_rank(name: str, array: Any, axes: str) -> None:
    """Raises `ShapeError` unless `array` has one axis for each word of `axes`, and no axis is empty.

    A leading `...` stands for any number of axes. For a scalar, `axes` is empty. The last axis may be empty if `axes` ends in `*`.
    """
    shape, names = shape_of(array), axes.split()
    if len(shape) != len(names) and (names[:1] != ["..."] or len(shape) < len(names) - 1):
        expected = f"the axes ({', '.join(names)})" if names else "a scalar"
        raise ShapeError(f"{name}: expected {expected}, got shape {shape}")
    if 0 in (shape[:-1] if axes.endswith("*") else shape):
        raise ShapeError(f"{name}: no axis of ({', '.join(names)}) may be empty, got shape {shape}")


def check_scores(name: str, array: Any, axes: str = "tokens experts") -> None:
    """Calls `check_floating`, then `check_rank`."""
    check_floating(name, array)
    check_rank(name, array, axes)


def check_size(name: str, array: Any, axis: int, size: int, reason: str) -> None:
    """Raises `ShapeError` unless axis `axis` has `size` entries. `reason` names the argument that requires this size."""
    shape = shape_of(array)
    if len(shape) < max(axis + 1, -axis):
        raise ShapeError(f"{name}: expected an array with axis {axis}, got {array!r}")
    if shape[axis] != size:
        raise ShapeError(f"{name}: axis {axis} has {shape[axis]} entries, expected {size} ({reason}): shape {shape}")


def check_same_shape(name: str, array: Any, other_name: str, other: Any) -> None:
    """Raises `ShapeError` unless both arrays have the same shape."""
    if shape_of(array) != tuple(other.shape):
        raise ShapeError(f"{name}: expected the shape of {other_name}, {tuple(other.shape)}, got {shape_of(array)}")


def check_integers(name: str, array: Any, axes: str) -> None:
    """Raises `DtypeError` unless `array` holds integers, then calls `check_rank`."""
    _check_integer_dtype(name, array)
    check_rank(name, array, axes)


def check_numbers(name: str, array: Any, axes: str) -> None:
    """Raises `DtypeError` unless `array` holds floating numbers or integers, then calls `check_rank`."""
    if not _of_integers(array):
        check_floating(name, array)
    check_rank(name, array, axes)


def check_one_per_token(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raises `DtypeError` unless `array` holds integers, and `ShapeError` unless `array` has the shape `shape`, one entry per token."""
    _check_integer_dtype(name, array)
    if shape_of(array) != tuple(shape):
        raise ShapeError(f"{name}: expected shape {tuple(shape)}, one entry per token, got {shape_of(array)}")


def check_mask(name: str, mask: Any, shape: tuple[int, ...], each: str) -> None:
    """Raises `DtypeError` unless `mask` holds booleans, and `ShapeError` ("one entry per `each`") unless `mask` has the shape `shape`."""
    if dtype_name(mask) != "bool":
        raise DtypeError(f"{name}: expected booleans, got {dtype_name(mask)}")
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"{name}: expected shape {tuple(shape)}, one entry per {each}, got {tuple(mask.shape)}")


def _of_integers(array: Any) -> bool:
    return dtype_name(array).startswith(("int", "uint"))


def _check_integer_dtype(name: str, array: Any) -> None:
    if not _of_integers(array):
        raise DtypeError(f"{name}: expected an integer dtype, got {dtype_name(array)}")


def check_at_least(name: str, value: Any, minimum: int) -> int:
    """Returns `value` as an int. Raises `ConfigError` unless `value` is an integer, at least `minimum` and below 2^31."""
    if isinstance(value, bool | np.bool_ | np.ndarray):
        raise ConfigError(f"{name}: expected an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: expected an integer, got {value!r}") from None
    if number < minimum:
        raise ConfigError(f"{name}: expected at least {minimum}, got {number}")
    if number >= 2**31:
        raise ConfigError(f"{name}: expected less than 2^31, got an integer of {number.bit_length()} bits")
    return number


def check_choices(choices: Any, experts: int) -> int:
    """Returns `choices` as an int. Raises `ConfigError` unless `1 <= choices <= experts`."""
    number = check_at_least("choices", choices, 1)
    if number > experts:
        raise ConfigError(f"choices: a token cannot choose {number} of {experts} experts")
    return number


def check_rivals(choices: int, experts: int) -> int:
    """Returns `choices` as an int. Raises `ConfigError` unless `1 <= choices < experts`."""
    return check_capacity(choices, experts - 1, name="choices", of="other experts")


def check_tries(tries: Any, choices: int, experts: int) -> int:
    """Returns `tries` as an int, or `choices` if `tries` is None. Raises `ConfigError` unless `choices <= tries <= experts`."""
    if tries is None:
        return choices
    number = check_at_least("tries", tries, choices)
    if number > experts:
        raise ConfigError(f"tries: a token cannot try {number} of {experts} experts")
    return number


def check_capacity(capacity: Any, tokens: int | None = None, *, name: str = "capacity", of: str = "tokens") -> int:
    """Returns `capacity` as an int. Raises `ConfigError` if `capacity` is below 1 or, unless `tokens` is None, above `tokens`."""
    number = check_at_least(name, capacity, 1)
    if tokens is not None and number > tokens:
        raise ConfigError(f"{name}: {number} is more than the {plural(tokens, of)}")
    return number


def plural(count: int, things: str) -> str:
    """Returns `count` followed by the plural noun `things`, without its final letter if `count` is 1: "1 token" or "2 tokens"."""
    return f"{count} {things[:-1] if count == 1 else things}"


def _number(name: str, value: Any, kind: str) -> float:
    """Returns `value` as a float. Raises `ConfigError` unless `value` is a finite real number."""
    if not isinstance(value, bool | str | bytes | np.ndarray):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ConfigError(f"{name}: expected {kind}, got {value!r}")


def check_positive(name: str, value: Any) -> float:
    """Returns `value` as a float. Raises `ConfigError` unless `value` is finite and greater than 0."""
    kind = "a finite number greater than 0"
    number = _number(name, value, kind)
    if number <= 0:
        raise ConfigError(f"{name}: expected {kind}, got {value!r}")
    return number


def check_segments(hashes: int, **sizes: int) -> None:
    """Raises `ConfigError` unless `hashes` divides each of `sizes`."""
    for name, size in sizes.items():
        if size % hashes:
            raise ConfigError(f"tables: {hashes} hashes do not divide the {name} width {size}")


def check_non_negative(name: str, value: Any) -> float:
    """Returns `value` as a float. Raises `ConfigError` unless `value` is finite and not negative."""
    number = _number(name, value, kind := "a finite number of at least 0")
    if number < 0:
        raise ConfigError(f"{name}: expected {kind}, got {value!r}")
    return number


def check_option(name: str, value: Any, options: Collection[str]) -> None:
    """Raises `ConfigError` unless `value` is one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise ConfigError(f"{name}: expected one of {str([*options])[1:-1]}, got {value!r}{near_it(value, options)}")
