"""Counter-based random numbers: 32-bit integers, and uniform and normal numbers."""

import math

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.threefry import BITS
from moespec.spec.checks import check_at_least, check_floating, check_integers, check_rank, check_size

__all__ = ["box_muller", "random_words", "threefry", "unit_interval"]


def threefry(xp: Namespace[Array], key: Array, counter: Array) -> Array:
    """key (2,), counter (..., 2) -> (..., 2) int32."""
    key, counter = _words(xp, "key", key, "words"), _words(xp, "counter", counter, "... words")
    check_size("key", key, 0, 2, "the words of a key")
    check_size("counter", counter, -1, 2, "the words of a counter")
    return xp.threefry(key, counter[..., 0], counter[..., 1])


def random_words(xp: Namespace[Array], origin: Array, *, stream: int, rows: int, columns: int) -> Array:
    """origin (4,) -> (rows, columns) int32."""
    origin = _words(xp, "origin", origin, "words")
    check_size("origin", origin, 0, 4, "two words of a seed, a step and a row")
    stream = check_at_least("stream", stream, 0)
    rows, columns = check_at_least("rows", rows, 1), check_at_least("columns", columns, 1)
    key = xp.threefry(origin[:2], origin[2], xp.full((), stream, origin))
    row, pair = origin[3] + xp.indices(rows, origin), xp.indices((columns + 1) // 2, origin)
    return xp.threefry(key, row[:, None], pair).reshape(rows, -1)[:, :columns]


def unit_interval(xp: Namespace[Array], words: Array) -> Array:
    """words (...) -> (...) float32."""
    return xp.cast(xp.shift_right_logical(_words(xp, "words", words, "..."), 32 - BITS), "float32") * 2.0**-BITS


def box_muller(xp: Namespace[Array], uniform: Array) -> Array:
    """uniform (..., 2) -> (..., 2)."""
    check_floating("uniform", uniform)
    check_rank("uniform", uniform, "... pair")
    check_size("uniform", uniform, -1, 2, "the numbers of a pair")
    uniform = xp.promote(uniform)
    radius, angle = xp.sqrt(-2 * xp.log(1 - uniform[..., 0])), math.pi * (2 * uniform[..., 1] - 1)
    return xp.stack([radius * xp.cos(angle), radius * xp.sin(angle)], -1)


def _words(xp: Namespace[Array], name: str, value: Array, axes: str) -> Array:
    check_integers(name, value, axes)
    return xp.cast(value, "int32")
