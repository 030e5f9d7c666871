"""Numbers for the inputs of cases, from a hash of a name: the same on every machine and in every version of NumPy.

Floats are multiples of a power of two and exactly representable in bfloat16, so every dtype sees the same numbers.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["grid", "integers", "permutation", "salted", "scaled", "signs", "to_bfloat16"]

Shape = Sequence[int]

_salt: ContextVar[str] = ContextVar("salt", default="")


@contextmanager
def salted(salt: str) -> Iterator[None]:
    """A context in which every name gives other numbers, the same for the same salt. The committed vectors have no salt."""
    token = _salt.set(salt)
    try:
        yield
    finally:
        _salt.reset(token)


def integers(key: str, shape: Shape, low: int, high: int) -> NDArray[np.int64]:
    """Integers from `low` to `high`, both included."""
    count = math.prod(shape)
    words = np.frombuffer(hashlib.shake_256(f"{_salt.get()}{key}".encode()).digest(4 * max(count, 1)), "<u4")[:count]
    return (low + (words.astype(np.int64) * (high - low + 1) >> 32)).reshape(shape)


def grid(
    key: str, shape: Shape, *, reach: float = 2.0, step: float = 0.125, centre: float = 0.0
) -> NDArray[np.float32]:
    """Multiples of `step` from `centre - reach` to `centre + reach`, the middle twice as likely as if uniform."""
    half = round(reach / step / 2)
    total = integers(f"{key}/a", shape, -half, half) + integers(f"{key}/b", shape, -half, half)
    return np.asarray(centre + total * step, np.float32)


def scaled(key: str, shape: Shape, deviation: float) -> NDArray[np.float32]:
    """Numbers of that standard deviation, each as likely as in `grid`, that bfloat16 and float16 both have."""
    total = integers(f"{key}/a", shape, -(2**20), 2**20) + integers(f"{key}/b", shape, -(2**20), 2**20)
    rounded = to_bfloat16(deviation * np.sqrt(1.5) * total * 2.0**-20)
    return np.where(np.abs(rounded) < 2.0**-14, np.float32(0), rounded)


def signs(key: str, shape: Shape) -> NDArray[np.float32]:
    """Each +1 or -1."""
    return np.asarray(2 * integers(key, shape, 0, 1) - 1, np.float32)


def permutation(key: str, size: int) -> NDArray[np.int32]:
    """An order of `0 .. size - 1`."""
    return np.argsort(integers(key, (size,), 0, 2**31 - 1), kind="stable").astype(np.int32)


def to_bfloat16(array: Any) -> NDArray[np.float32]:
    """The nearest values that bfloat16 has (ties to even), as float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).reshape(np.shape(array))
