"""Cases of the random numbers for noise and dropout: words, uniform and normal numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import integers
from moespec.conformance.author.variant import Spec, Variant, variant
from moespec.conformance.format import Tensor

NAME = "threefry"

KNOWN = ((0, 0), ((0, 0),)), ((-1, -1), ((-1, -1),)), ((0x13198A2E, 0x03707344), ((0x243F6A88, 0x85A308D3),))
"""Keys and counters of Random123's known-answer tests for 20 rounds."""
ORIGIN = (7, 0, 3, 0)


def _words(values: Any, axes: str) -> Tensor:
    return tensor(np.asarray(values, np.int64).astype(np.uint32).view(np.int32), axes)


def cases() -> Iterator[Definition]:
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
    # The uniform numbers below are exact in every dtype. A test of each backend covers the largest number, 1 - 2^-24.
    pairs = integers(f"{NAME}/pairs", (5, 2), 0, 127) / 128
    tails = [[0.0, 0.375], [1 - 2.0**-8, 0.0], [1 - 2.0**-8, 0.75], [2.0**-24, 0.25], [0.5, 1 - 2.0**-8], [0.25, 0.5]]
    for name, values, purpose in (
        ("normal", pairs, "Drawn numbers."),
        ("normal_edges", tails, "The ends of the interval: large numbers, small ones, and 0."),
    ):
        yield case("box_muller", name, "value", purpose, uniform=tensor(np.asarray(values), "places pair"))


def all_bits(B: Spec, words: Array) -> Array:
    """A uniform number uses all 32 bits of a word and adds half of the last bit."""
    return ((np.asarray(words).astype(np.int64) & (2**32 - 1)) + 0.5) * 2.0**-32


def one_normal_of_each_word(B: Spec, uniform: Array) -> Array:
    """Each uniform number becomes a normal number through the inverse of the normal distribution function."""
    return ndtri(np.maximum(np.real(uniform), 2.0**-25))


def sine_first(B: Spec, uniform: Array) -> Array:
    """The first uniform number gives the angle, the second gives the radius, and the sine comes before the cosine."""
    return B.box_muller(uniform[..., ::-1])[..., ::-1]


def variants() -> Iterator[Variant]:
    yield variant(all_bits, "unit_interval", ledger="RN-1b")
    yield variant(sine_first, "box_muller", ledger="RN-2b")
    yield variant(one_normal_of_each_word, "box_muller", ledger="RN-2c")
