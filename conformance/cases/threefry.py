"""The random numbers of noise and dropout: words, uniform and normal numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.describe import Function, Output
from moespec.conformance.author.draw import integers
from moespec.conformance.author.variant import variant
from moespec.conformance.format import Tensor
from moespec.spec.threefry import PARITY, ROTATIONS

__all__ = ["FUNCTIONS", "VARIANTS", "cases"]

NAME = "threefry"


def _normal_scale(uniform: Any) -> Any:
    """`r (1 + |a|)`, by whose multiples the roundings of the angle and of the radius move a normal number."""
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - uniform[..., 0])), np.pi * (2.0 * uniform[..., 1] - 1.0)
    return np.stack([radius * (1.0 + np.abs(angle))] * 2, axis=-1)


FUNCTIONS = (
    Function("threefry", {"words": Output("counters words", "int")}),
    Function("random_words", {"words": Output("places columns", "int")}),
    Function("unit_interval", {"uniform": Output("places columns", scale="magnitude")}),
    Function("box_muller", {"normal": Output("places pair", scale="written", written=_normal_scale)}),
)

KNOWN = ((0, 0), ((0, 0),)), ((-1, -1), ((-1, -1),)), ((0x13198A2E, 0x03707344), ((0x243F6A88, 0x85A308D3),))
"""Key and counter of Random123's known answers for 20 rounds."""
ORIGIN = (7, 0, 3, 0)


def _words(values: Any, axes: str) -> Tensor:
    return tensor(np.asarray(values, np.int64).astype(np.uint32).view(np.int32), axes)


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    case = partial(single, NAME)
    both = integers(f"{NAME}/bits", (5, 2), -(2**31), 2**31 - 1)
    for name, (key, counter) in zip(("zeros", "ones", "pi"), KNOWN, strict=True):
        inputs: dict[str, Any] = {"key": _words(key, "words"), "counter": _words(counter, "counters words")}
        yield case("threefry", name, "value", "A published answer of Random123, of 20 rounds.", **inputs)
    inputs = {"key": _words(both[0], "words"), "counter": _words(both[1:], "counters words")}
    yield case("threefry", "several", "value", "Several counters with one key.", **inputs)

    words = partial(case, "random_words")
    large = (-3, 12345, 2**31 - 1, 2**31 - 2)
    for name, origin, stream, rows, columns, purpose in (
        ("rows", ORIGIN, 1, 3, 4, "A row is a token, two columns share a counter."),
        ("rows_later", (7, 0, 3, 2), 1, 2, 3, "Later rows of the same, and an odd number of columns."),
        ("rows_high", large, 2**20 + 5, 3, 2, "A seed of 64 bits, and rows that pass 2^31."),
        ("rows_one", ORIGIN, 0, 1, 1, "One number."),
    ):
        kind = "degenerate" if name == "rows_one" else "value"
        sizes: dict[str, Any] = {"stream": stream, "rows": rows, "columns": columns}
        yield words(name, kind, purpose, origin=_words(origin, "words"), **sizes)

    edges = [[0, 255, 256], [2**31 - 1, -(2**31), -1], [*both[0], 1 << 20]]
    purpose = "The 24 highest bits; the sign is one of them."
    yield case("unit_interval", "uniform", "value", purpose, words=_words(edges, "places columns"))
    # Every dtype has these numbers. What the largest, 1 - 2^-24, gives is for each backend's own tests.
    pairs = integers(f"{NAME}/pairs", (5, 2), 0, 127) / 128
    tails = [[0.0, 0.375], [1 - 2.0**-8, 0.0], [1 - 2.0**-8, 0.75], [2.0**-24, 0.25], [0.5, 1 - 2.0**-8], [0.25, 0.5]]
    for name, values, purpose in (
        ("normal", pairs, "Drawn numbers."),
        (
            "normal_edges",
            tails,
            "The ends of the interval: large numbers, small ones, and 0.",
        ),
    ):
        yield case("box_muller", name, "value", purpose, uniform=tensor(np.asarray(values), "places pair"))


# Variants.


def _threefry(key: Any, counter: Any, *, rotations: Any = ROTATIONS, parity: int = PARITY,
              injections: int = 5, counted: int = 1) -> Any:  # fmt: skip
    """Threefry with other constants; all words here are int64 from 0 on."""
    low = 2**32 - 1
    key, counter = (np.asarray(words).astype(np.int64) & low for words in (key, counter))
    schedule = (key[0], key[1], key[0] ^ key[1] ^ parity)
    first, second = (counter[..., 0] + key[0]) & low, (counter[..., 1] + key[1]) & low
    for injection in range(1, injections + 1):
        for bits in rotations[(injection - 1) % 2]:
            first = (first + second) & low
            second = ((second << bits | second >> 32 - bits) & low) ^ first
        first = (first + schedule[injection % 3]) & low
        second = (second + schedule[(injection + 1) % 3] + counted * injection) & low
    return np.stack([first, second], axis=-1).astype(np.uint32).view(np.int32)


def rotations_in_another_order(B: Any, key: Any, counter: Any) -> Any:
    """The second four rotations of Threefry come before the first four."""
    B.threefry(key, counter)
    return _threefry(key, counter, rotations=ROTATIONS[::-1])


def parity_of_zero(B: Any, key: Any, counter: Any) -> Any:
    """The third word of the key schedule is the exclusive or of the key alone."""
    B.threefry(key, counter)
    return _threefry(key, counter, parity=0)


def injections_not_counted(B: Any, key: Any, counter: Any) -> Any:
    """The number of an injection is not added to the second word."""
    B.threefry(key, counter)
    return _threefry(key, counter, counted=0)


def twelve_rounds(B: Any, key: Any, counter: Any) -> Any:
    """Threefry has 12 rounds."""
    B.threefry(key, counter)
    return _threefry(key, counter, injections=3)


def _mapped(
    B: Any, origin: Any, stream: int, rows: int, columns: int, key_of: Any, counters_of: Any, word: Any = None
) -> Any:
    """Words by another mapping of places to keys and counters."""
    B.random_words(origin, stream=stream, rows=rows, columns=columns)
    low, high, step, first = (int(number) for number in np.asarray(origin))
    key = B.threefry(*(np.array(words, np.int64) for words in key_of(low, high, step, stream)))
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    counter = np.stack(counters_of(first + row, column), axis=-1)
    drawn = B.threefry(key, counter)
    which = column % 2 if word is None else word(column)
    return np.take_along_axis(drawn, which[..., None], axis=-1)[..., 0]


def _key(low: int, high: int, step: int, stream: int) -> Any:
    return (low, high), (step, stream)


def counter_swapped(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """The first word of a counter is the column, the second the row."""
    return _mapped(B, origin, stream, rows, columns, _key, lambda row, column: (column // 2, row))


def step_and_stream_swapped(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """The key is made of the stream and the step, not of the step and the stream."""

    def key_of(low: int, high: int, step: int, stream: int) -> Any:
        return (low, high), (stream, step)

    return _mapped(B, origin, stream, rows, columns, key_of, lambda row, column: (row, column // 2))


def seed_of_32_bits(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """The high word of the seed does not count."""

    def key_of(low: int, high: int, step: int, stream: int) -> Any:
        return (low, 0), (step, stream)

    return _mapped(B, origin, stream, rows, columns, key_of, lambda row, column: (row, column // 2))


def rows_from_zero(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """Rows are counted from 0 in each part of a batch."""
    return B.random_words(np.array([*np.asarray(origin)[:3], 0]), stream=stream, rows=rows, columns=columns)


def a_counter_for_each_number(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """Every column has its own counter, whose first word it takes."""
    return _mapped(B, origin, stream, rows, columns, _key, lambda row, column: (row, column), lambda column: 0 * column)


def columns_in_halves(B: Any, origin: Any, *, stream: int, rows: int, columns: int) -> Any:
    """The first half of the columns takes the first words of the counters, the second half the second words."""
    half = (columns + 1) // 2
    return _mapped(
        *(B, origin, stream, rows, columns, _key),
        lambda row, column: (row, column % half),
        lambda column: column // half,
    )


def all_bits(B: Any, words: Any) -> Any:
    """A uniform number is made of all 32 bits, and half of the last one more."""
    B.unit_interval(words)
    return ((np.asarray(words).astype(np.int64) & (2**32 - 1)) + 0.5) * 2.0**-32


def bits_with_sign(B: Any, words: Any) -> Any:
    """The sign of a word is repeated where it is shifted."""
    B.unit_interval(words)
    return (np.asarray(words).astype(np.int64) >> 8) * 2.0**-24


def twenty_three_bits(B: Any, words: Any) -> Any:
    """A uniform number has the 23 highest bits alone."""
    return np.floor(B.unit_interval(words) * 2.0**23) * 2.0**-23


def one_normal_of_each_word(B: Any, uniform: Any) -> Any:
    """Each uniform number becomes a normal one by the inverse of the distribution function."""
    B.box_muller(uniform)
    return ndtri(np.maximum(np.real(uniform), 2.0**-25))


def sine_first(B: Any, uniform: Any) -> Any:
    """The first word is the angle and the second the radius, and the sine comes first."""
    B.box_muller(uniform)
    return B.box_muller(uniform[..., ::-1])[..., ::-1]


def radius_of_the_logarithm(B: Any, uniform: Any) -> Any:
    """The radius is the square root of -2 log(u), which is infinite at 0."""
    B.box_muller(uniform)
    with np.errstate(divide="ignore"):
        radius = np.sqrt(-2.0 * np.log(uniform[..., :1].real))
    angle = np.pi * (2.0 * uniform[..., 1].real - 1.0)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def angle_not_turned(B: Any, uniform: Any) -> Any:
    """The angle is 2 pi u."""
    return -B.box_muller(uniform)


def one_normal_of_two(B: Any, uniform: Any) -> Any:
    """Both numbers of a pair are the cosine."""
    return np.stack([B.box_muller(uniform)[..., 0]] * 2, axis=-1)


VARIANTS = (
    *(variant(function, "threefry") for function in (rotations_in_another_order, parity_of_zero)),
    *(variant(function, "threefry") for function in (injections_not_counted, twelve_rounds)),
    *(variant(function, "random_words") for function in (counter_swapped, step_and_stream_swapped, seed_of_32_bits)),
    *(variant(function, "random_words") for function in (rows_from_zero, a_counter_for_each_number, columns_in_halves)),
    variant(all_bits, "unit_interval", ledger="RN-1b"),
    variant(bits_with_sign, "unit_interval"),
    variant(twenty_three_bits, "unit_interval"),
    variant(sine_first, "box_muller", ledger="RN-2b"),
    variant(one_normal_of_each_word, "box_muller", ledger="RN-2c"),
    variant(radius_of_the_logarithm, "box_muller"),
    variant(angle_not_turned, "box_muller"),
    variant(one_normal_of_two, "box_muller"),
)
