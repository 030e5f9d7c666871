"""Random numbers of a counter, as integers of 32 bits, and dropout.

The generator is JAX's own, which compiles it for each device as suits that best.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import threefry2x32_p

from moespec.backends.jax.arrays import wide
from moespec.backends.jax.explicit import by_groups
from moespec.spec.checks import check_at_least, check_floating, check_integers, check_rank, check_size
from moespec.spec.dropout import check_draws, threshold
from moespec.spec.threefry import BITS

__all__ = ["box_muller", "dropout", "random_words", "threefry", "unit_interval"]


def threefry(key: Array, counter: Array) -> Array:
    """key (2,), counter (..., 2) -> (..., 2) int32."""
    key, counter = _words("key", key, "words"), _words("counter", counter, "... words")
    check_size("key", key, 0, 2, "the words of a key")
    check_size("counter", counter, -1, 2, "the words of a counter")
    return _signed(threefry2x32_p.bind(key[0], key[1], counter[..., 0], counter[..., 1]))  # type: ignore[no-untyped-call]


def random_words(origin: Array, *, stream: int, rows: int, columns: int) -> Array:
    """origin (4,) -> (rows, columns) int32."""
    origin = _words("origin", origin, "words")
    check_size("origin", origin, 0, 4, "two words of a seed, a step and a row")
    stream = check_at_least("stream", stream, 0)
    rows, columns = check_at_least("rows", rows, 1), check_at_least("columns", columns, 1)
    key = threefry2x32_p.bind(origin[0], origin[1], origin[2], jnp.uint32(stream))  # type: ignore[no-untyped-call]
    row = origin[3] + lax.broadcasted_iota(jnp.uint32, (rows, (columns + 1) // 2), 0)
    pair = lax.broadcasted_iota(jnp.uint32, row.shape, 1)
    return _signed(threefry2x32_p.bind(*key, row, pair)).reshape(rows, -1)[:, :columns]  # type: ignore[no-untyped-call]


def unit_interval(words: Array) -> Array:
    """words (...) -> (...) float32."""
    return (_words("words", words, "...") >> 32 - BITS).astype(jnp.float32) * np.float32(2.0**-BITS)


def box_muller(uniform: Array) -> Array:
    """uniform (..., 2) -> (..., 2)."""
    check_floating("uniform", uniform)
    check_rank("uniform", uniform, "... pair")
    check_size("uniform", uniform, -1, 2, "the numbers of a pair")
    uniform = wide(uniform)
    radius, angle = jnp.sqrt(-2 * jnp.log(1 - uniform[..., 0])), np.pi * (2 * uniform[..., 1] - 1)
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)


@by_groups({"x": "group", "draws": "group"})
def dropout(x: Array, draws: Array, *, rate: float) -> Array:
    """x (...), draws (...) -> (...), in the dtype of x."""
    check_floating("x", x)
    check_rank("x", x, "...")
    check_floating("draws", draws)
    check_draws(draws, x)
    return jnp.where(draws >= threshold(rate), x / (1 - rate), jnp.zeros_like(x))


def _words(name: str, value: Array, axes: str) -> Array:
    check_integers(name, value, axes)
    return jnp.asarray(value).astype(jnp.uint32)


def _signed(words: Sequence[Array]) -> Array:
    return lax.bitcast_convert_type(jnp.stack(words, axis=-1), jnp.int32)
