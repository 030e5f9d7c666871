"""Derives input numbers from the hash of a name, and defines the inputs that several algorithms share.

The numbers are identical on every machine and with every NumPy version. All floats are multiples of a power of two. Except
in wide cases, bfloat16 represents the floats exactly, so all dtypes use the same numbers.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.author.definition import tensor
from moespec.conformance.format import Tensor
from moespec.spec.examples import TIED_SCORES
from moespec.spec.numerics import softmax

__all__ = [
    *("CROWD", "TIED", "both", "distinct", "experts", "grid", "groups_tokens", "integers", "kernel", "logits"),
    *("of_experts", "permutation", "prefixed", "rows", "salted", "scaled", "scores", "signs", "to_bfloat16", "tokens"),
    "utilities",
]

Shape = Sequence[int]

_salt: ContextVar[str] = ContextVar("salt", default="")


@contextmanager
def salted(salt: str) -> Iterator[None]:
    """Return a context in which `salt` changes the numbers that are derived from names. The committed vectors use no salt."""
    token = _salt.set(salt)
    try:
        yield
    finally:
        _salt.reset(token)


def integers(key: str, shape: Shape, low: int, high: int) -> NDArray[np.int64]:
    """Return integers from `low` to `high` inclusive."""
    count = math.prod(shape)
    words = np.frombuffer(hashlib.shake_256(f"{_salt.get()}{key}".encode()).digest(4 * max(count, 1)), "<u4")[:count]
    return (low + (words.astype(np.int64) * (high - low + 1) >> 32)).reshape(shape)


def grid(
    key: str, shape: Shape, *, reach: float = 2.0, step: float = 0.125, centre: float = 0.0
) -> NDArray[np.float32]:
    """Return `centre + k * step` from about `centre - reach` to `centre + reach`. The integer k is a sum of two uniform draws."""
    half = round(reach / step / 2)
    total = integers(f"{key}/a", shape, -half, half) + integers(f"{key}/b", shape, -half, half)
    return np.asarray(centre + total * step, np.float32)


def scaled(key: str, shape: Shape, deviation: float) -> NDArray[np.float32]:
    """Return numbers with the given standard deviation, distributed as in `grid` and exact in bfloat16 and float16."""
    total = integers(f"{key}/a", shape, -(2**20), 2**20) + integers(f"{key}/b", shape, -(2**20), 2**20)
    rounded = to_bfloat16(deviation * np.sqrt(1.5) * total * 2.0**-20)
    return np.where(np.abs(rounded) < 2.0**-14, np.float32(0), rounded)


def signs(key: str, shape: Shape) -> NDArray[np.float32]:
    """Return random signs, +1 or -1."""
    return np.asarray(2 * integers(key, shape, 0, 1) - 1, np.float32)


def permutation(key: str, size: int) -> NDArray[np.int32]:
    """Return a random permutation of `0 .. size - 1`."""
    return np.argsort(integers(key, (size,), 0, 2**31 - 1), kind="stable").astype(np.int32)


def to_bfloat16(array: Any) -> NDArray[np.float32]:
    """Round values to bfloat16 (ties to even) and return the rounded values as float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).reshape(np.shape(array))


G, T, E, D, H = 2, 6, 3, 4, 3


def rows(text: str) -> NDArray[np.float64]:
    """Parse a matrix from text in which semicolons separate rows."""
    return np.array([[float(number) for number in row.split()] for row in text.split(";")])


CROWD = rows("0.75 0.25 0; 0.875 0 0.125; 0.5 0.25 0.25; 0.625 0 0.375; 0.75 0.125 0.125; 0.5 0.375 0.125")
"""Scores with which every token's first choice is expert 0."""

TIED = np.concatenate([TIED_SCORES, [[0.25, 0.25, 0.5]]])
"""The specification's tie matrix with one extra row."""


def groups_tokens(values: Any) -> Tensor:
    """Return a tensor `(groups, tokens, experts)`. Add a groups axis to a matrix."""
    array = np.asarray(values, np.float32)
    return tensor(array if array.ndim == 3 else array[None], "groups tokens experts")


def both(values: Any) -> Tensor:
    """Return two groups of `(tokens, experts)` values. The second group reverses the order of the tokens."""
    return groups_tokens(np.stack([values, np.asarray(values)[::-1]]))


def tokens(key: str, shape: tuple[int, int, int] = (G, T, D)) -> Tensor:
    """Return random tokens."""
    return tensor(grid(key, shape), "groups tokens width")


def kernel(key: str, width: int = D, count: int = E, reach: float = 1.0) -> Tensor:
    """Return a kernel for router logits."""
    return tensor(grid(key, (width, count), reach=reach), "width experts")


def logits(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0, step: float = 0.125) -> Tensor:
    """Return random logits on a grid."""
    return groups_tokens(grid(key, shape, reach=reach, step=step))


def utilities(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0) -> Tensor:
    """Return softmax scores rounded to bfloat16."""
    return groups_tokens(to_bfloat16(softmax(grid(key, shape, reach=reach, step=0.125).astype(np.float64))))


def scores(key: str, shape: tuple[int, ...] = (G, T, E), step: float = 1 / 256) -> Tensor:
    """Return positive scores on a grid. Nearly all scores are distinct."""
    return groups_tokens(grid(key, shape, reach=0.46875, step=step, centre=0.5))


def distinct(key: str, shape: tuple[int, int, int]) -> Tensor:
    """Return positive scores that are all distinct within a group."""
    count = shape[1] * shape[2]
    return groups_tokens(
        np.stack([(permutation(f"{key}/{g}", count).reshape(shape[1:]) + 8) / 64 for g in range(shape[0])])
    )


def of_experts(values: Any) -> Tensor:
    """Tensor `(experts,)`."""
    return tensor(np.asarray(values, np.float32), "experts")


def prefixed(values: Mapping[str, Tensor], prefix: str = "experts") -> dict[str, Tensor]:
    """Return parameters as inputs with a prefix before each name. The default is the prefix of the experts."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


def experts(
    key: str, e: int = E, d: int = D, h: int = H, out: int = D, *, gated: bool = False, biased: bool = True
) -> dict[str, Tensor]:
    """Return the parameters of expert MLPs. Most biases are nonzero, so the experts' output for an empty slot is nonzero."""
    gate = {
        "w3": tensor(grid(f"{key}/w3", (e, d, h), reach=1.0), "experts width hidden"),
        "b3": tensor(grid(f"{key}/b3", (e, h), reach=0.5, centre=0.25), "experts hidden"),
    }
    values = {
        "w1": tensor(grid(f"{key}/w1", (e, d, h), reach=1.0), "experts width hidden"),
        "b1": tensor(grid(f"{key}/b1", (e, h), reach=0.5, centre=0.25), "experts hidden"),
        "w2": tensor(grid(f"{key}/w2", (e, h, out), reach=1.0), "experts hidden width"),
        "b2": tensor(grid(f"{key}/b2", (e, out), reach=0.5, centre=0.25), "experts width"),
        **(gate if gated else {}),
    }
    return {name: value for name, value in values.items() if biased or name.startswith("w")}
