"""Random numbers computed from the seed, the step and the position: the generator Threefry-2x32 with 20 rounds.

| here | Salmon et al. 2011 |
|---|---|
| `counter` (..., 2), `key` (2,) | the plaintext and the key of Threefry-2x32-20 |
| a word | 32 bits, stored as the int32 with the same bits |

The generator has no state, and its numbers do not depend on the backend, the device or the sharding of the batch. The
seed, the step, the stream (the purpose of the numbers in the model), the row (the token's index in the global batch)
and the column (the expert, or the entry of the token vector) determine each number:

    key          = threefry((seed's low word, seed's high word), (step, stream))
    word[r, c]   = threefry(key, (first + r, c // 2))[c % 2]
    uniform      = (24 highest bits of the word) / 2^24
    normal, normal' = r cos(a), r sin(a)     with r = sqrt(-2 log(1 - u)), a = pi (2 u' - 1) of two uniform numbers u, u'

Words and uniform numbers are bit-identical on every backend. Normal numbers are equal up to rounding. With unit
roundoff u, the error of a normal number is at most `4 u r (1 + |a|)`, which is below 17 u r. The radius r is at most 5.77.

Ambiguity ledger

RN-1: How are 32 random bits converted to a uniform number?
    Reading: the 24 highest bits are divided by 2^24. The result is in [0, 1) and exact in float32 and float64.
    Alternative b: all 32 bits are divided by 2^32, and 2^-33 is added. In float32, the result is rounded.
        By: DEShawResearch/random123, include/Random123/uniform.hpp, u01.
RN-2: How are two random words converted to normal numbers?
    Reading: the Box-Muller transform is used, with the first word for the radius.
    Alternative b: the Box-Muller transform is used, with the first word for the angle and the sine before the cosine.
        By: DEShawResearch/random123, include/Random123/boxmuller.hpp, boxmuller.
    Alternative c: the inverse normal CDF is applied to each word. In float32, it is inaccurate in parts of its range.
"""

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_integers, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, Leading, Shared
from moespec.spec.values import as_array, even

__all__ = ["box_muller", "random_words", "threefry", "unit_interval"]

ALGORITHMS = (
    Algorithm(
        "threefry",
        "Salmon et al. 2011 (doi 10.1145/2063384.2063405)",
        1,
        ("box_muller", "random_words", "threefry", "unit_interval"),
    ),
)

Words = NDArray[np.int32]

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
"""Rotations of the second word, in bits. Four rounds use the first tuple, the next four use the second tuple, and so on in turn."""
PARITY = 0x1BD11BDA
"""Constant that is xored into the third word of the key schedule."""
INJECTIONS = 5
"""Number of key injections, one after every four rounds."""
BITS = 24
"""Number of random bits in a uniform number."""
LOW = 2**32 - 1


def threefry(key: Shared, counter: Leading) -> Words:
    """Computes two random words from each counter. Words are 32-bit integers, returned as int32.

        x = counter + key,    key'' = key[0] ^ key[1] ^ 0x1BD11BDA
        x[0] <- x[0] + x[1];    x[1] <- rotate(x[1]) ^ x[0]                      20 rounds
        x <- x + the next two of (key[0], key[1], key''), x[1] <- x[1] + i       after every four rounds, for the i-th time

    Args:
        key: (2,) integers. Only the lowest 32 bits of each integer are used.
        counter: (..., 2) integers. Only the lowest 32 bits of each integer are used.

    Returns:
        (..., 2) int32.

    Source: Salmon et al. 2011, section 4.2; DEShawResearch/random123, include/Random123/threefry.h (threefry2x32_R, which a macro defines).

    >>> [f"{word & 0xFFFFFFFF:08x}" for word in threefry([0, 0], [0, 0]).tolist()]
    ['6b200159', '99ba4efe']
    """
    key, counter = _words("key", key, "words"), _words("counter", counter, "... words")
    check_size("key", key, 0, 2, "the words of a key")
    check_size("counter", counter, -1, 2, "the words of a counter")
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = (counter[..., 0] + key[0]) & LOW, (counter[..., 1] + key[1]) & LOW
    for injection in range(1, INJECTIONS + 1):
        for bits in ROTATIONS[(injection - 1) % 2]:
            first = (first + second) & LOW
            second = ((second << bits | second >> 32 - bits) & LOW) ^ first
        first = (first + schedule[injection % 3]) & LOW
        second = (second + schedule[(injection + 1) % 3] + injection) & LOW
    return np.stack([first, second], axis=-1).astype(np.uint32).view(np.int32)


def random_words(origin: Shared, *, stream: int, rows: int, columns: int) -> Words:
    """Computes the words of one stream with the formula for `word[r, c]` in the docstring of this module.

    Args:
        origin: (4,) integers: the seed's low word, its high word, the step, and the first row. Only their lowest 32 bits are used.
        stream: the index of the stream, at least 0.
        rows: the number of rows R, at least 1.
        columns: the number of columns C, at least 1. The words of a column do not depend on C.

    Returns:
        (rows, columns) int32.

    Source: Salmon et al. 2011 for the generator; the key and the counters are moespec's choice.

    >>> random_words([7, 0, 3, 0], stream=1, rows=2, columns=3).tolist()
    [[-668455069, -48826506, -703553145], [755346426, 1636689908, 2024616946]]
    >>> random_words([7, 0, 3, 1], stream=1, rows=1, columns=2).tolist()  # the second row above
    [[755346426, 1636689908]]
    """
    origin = _words("origin", origin, "words")
    check_size("origin", origin, 0, 4, "two words of a seed, a step and a row")
    stream = check_at_least("stream", stream, 0)
    rows, columns = check_at_least("rows", rows, 1), check_at_least("columns", columns, 1)
    key = threefry(origin[:2], np.array([origin[2], stream]))
    counter = np.empty((rows, (columns + 1) // 2, 2), np.int64)
    counter[..., 0] = origin[3] + np.arange(rows)[:, None]
    counter[..., 1] = np.arange(counter.shape[1])
    return threefry(key, counter).reshape(rows, -1)[:, :columns]


def unit_interval(words: Leading) -> Array:
    """Computes uniform numbers in [0, 1): the 24 highest bits of each word, divided by 2^24, in float32 or float64.

    Args:
        words: (...) integers. Only the lowest 32 bits of each integer are used.

    Returns:
        The shape of `words`.

    Source: DEShawResearch/random123, include/Random123/uniform.hpp, but see RN-1.

    >>> unit_interval([0, 255, 256, 2**31 - 1, -(2**31), -1]).tolist() == [0, 0, 2**-24, 0.5 - 2**-24, 0.5, 1 - 2**-24]
    True
    """
    return (_words("words", words, "...") >> 32 - BITS) * 2.0**-BITS


def box_muller(uniform: Leading) -> Array:
    """Computes two independent standard normal numbers from two independent uniform numbers:

        r cos(a), r sin(a)    with r = sqrt(-2 log(1 - u[0])), a = pi (2 u[1] - 1)

    Args:
        uniform: (..., 2), in [0, 1).

    Returns:
        (..., 2).

    Source: Box and Muller 1958; DEShawResearch/random123, include/Random123/boxmuller.hpp, but see RN-2.

    >>> box_muller([[0.5, 0.5], [0.25, 0.75]]).round(9).tolist()
    [[1.177410023, 0.0], [0.0, 0.758527616]]
    """
    uniform = as_array("uniform", uniform, "... pair").real
    check_size("uniform", uniform, -1, 2, "the numbers of a pair")
    if not ((uniform >= 0) & (uniform < 1)).all():
        raise ContractError(f"uniform: expected numbers in [0, 1), got {uniform.tolist()}")
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - uniform[..., 0])), np.pi * (2.0 * uniform[..., 1] - 1.0)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def _words(name: str, value: ArrayLike, axes: str) -> NDArray[np.int64]:
    """Returns the lowest 32 bits of integers as non-negative int64, so that additions and shifts do not overflow."""
    array = even(name, value)
    check_integers(name, array, axes)
    return array.astype(np.int64) & LOW
