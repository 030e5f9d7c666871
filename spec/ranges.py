"""Validation of options. The type of a field defines the valid values: a `Range` of numbers, the words of a `Literal`, or a bool."""

import math
import operator
import types
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName, is_own

WORDS: dict[Any, str] = {int: "an integer", bool: "True or False", str: "a text", OwnName: "package.module:object"}
"""Descriptions of types in error messages."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest finite number in float32, the dtype in which backends compute."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest positive normal number in float32. Hardware may flush smaller numbers to 0."""


@dataclass(frozen=True)
class Range:
    """A range of numbers from `low` to `high`. `above` excludes `low`, and `below` excludes `high`."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = True

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        low = f"greater than {self.low:g}" if self.above else f"of at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and {'below' if self.below else 'at most'} {self.high:.10g}"


Count = Annotated[int, Range(1, 2**31)]
"""An integer of at least 1 that fits in 32 bits, such as a number of tokens or slots."""
Scalar = Annotated[float, Range(0, LARGEST, below=False)]
"""A number of at least 0 that is also finite in float32."""
Positive = Annotated[float, Range(0, LARGEST, above=True, below=False)]
"""A number greater than 0 that is also finite in float32."""
Weight = Scalar
"""The weight of a loss."""
Factor = Annotated[float, Range(0, above=True, below=False)]
"""A number greater than 0, which may be infinite."""


@cache
def option_types(kind: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def check(name: str, value: Any, hint: Any) -> None:
    """Raises `ConfigError` unless `value` is valid for `hint`, the type of the option `name`."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not any(_fits(value, kind) for kind in kinds):
        raise ConfigError(f"{name}: expected {' or '.join(map(_described, kinds))}, got {value!r}")


def plain(value: Any) -> Any:
    """Converts a NumPy number to a Python number, because NumPy integers overflow. Converts an int beyond int64 to a float."""
    if isinstance(value, np.generic | np.ndarray) and not value.ndim:
        return value.item()
    return float(value) if isinstance(value, int) and 63 < value.bit_length() < 1024 else value


def _fits(value: Any, kind: Any) -> bool:
    if kind is type(None):
        return value is None
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is OwnName:
        return is_own(value)
    base, limits = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
    if base is str:
        return isinstance(value, str)
    if base is bool or isinstance(value, bool | np.bool_):
        return base is bool and isinstance(value, bool | np.bool_)
    if base is int:
        return _is_integer(value) and (limits is None or value in limits)
    if not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return False
    return limits is None or number in limits  # no range contains NaN


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _described(kind: Any) -> str:
    if kind is type(None):
        return "None"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    base, limits = get_args(kind) if get_origin(kind) is Annotated else (kind, "")
    finite = "" if limits and limits.high == math.inf and not limits.below else "finite "
    return f"{WORDS.get(base, f'a {finite}number')} {limits}".rstrip()
