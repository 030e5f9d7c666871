"""Random numbers of a counter, as integers of 32 bits, and dropout.

Words are int32, the one integer of 32 bits that has every operation on every device; its sums wrap around.
"""

import math
from typing import cast

import torch
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.operators import operator
from moespec.spec.checks import check_at_least, check_floating, check_integers, check_rank, check_size
from moespec.spec.dropout import check_draws, threshold
from moespec.spec.threefry import BITS, INJECTIONS, PARITY, ROTATIONS

__all__ = ["box_muller", "dropout", "random_words", "threefry", "unit_interval"]


def threefry(key: Tensor, counter: Tensor) -> Tensor:
    """key (2,), counter (..., 2) -> (..., 2) int32."""
    key, counter = _words("key", key, "words"), _words("counter", counter, "... words")
    check_size("key", key, 0, 2, "the words of a key")
    check_size("counter", counter, -1, 2, "the words of a counter")
    return cast(Tensor, _rounds(key, counter[..., 0], counter[..., 1]))


def random_words(origin: Tensor, *, stream: int, rows: int, columns: int) -> Tensor:
    """origin (4,) -> (rows, columns) int32."""
    origin = _words("origin", origin, "words")
    check_size("origin", origin, 0, 4, "two words of a seed, a step and a row")
    stream = check_at_least("stream", stream, 0)
    rows, columns = check_at_least("rows", rows, 1), check_at_least("columns", columns, 1)
    key = _rounds(origin[:2], origin[2], torch.full_like(origin[2], stream))
    row = origin[3] + torch.arange(rows, dtype=torch.int32, device=origin.device)
    pair = torch.arange((columns + 1) // 2, dtype=torch.int32, device=origin.device)
    return cast(Tensor, _rounds(key, row[:, None], pair)).reshape(rows, -1)[:, :columns]


def unit_interval(words: Tensor) -> Tensor:
    """words (...) -> (...) float32."""
    return _right(_words("words", words, "..."), 32 - BITS).to(torch.float32) * 2.0**-BITS


def box_muller(uniform: Tensor) -> Tensor:
    """uniform (..., 2) -> (..., 2)."""
    check_floating("uniform", uniform)
    check_rank("uniform", uniform, "... pair")
    check_size("uniform", uniform, -1, 2, "the numbers of a pair")
    uniform = widen(uniform)
    radius, angle = torch.sqrt(-2 * torch.log(1 - uniform[..., 0])), math.pi * (2 * uniform[..., 1] - 1)
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)


def dropout(x: Tensor, draws: Tensor, *, rate: float) -> Tensor:
    """x (...), draws (...) -> (...), in the dtype of x."""
    check_floating("x", x)
    check_rank("x", x, "...")
    check_floating("draws", draws)
    check_draws(draws, x)
    return torch.where(draws >= threshold(rate), x / (1 - rate), torch.zeros_like(x))


@operator
def _rounds(key: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Threefry-2x32-20 of the counters (first, second), which broadcast: (..., 2).

    A compiler would write the 20 rounds out for each use of random numbers, and take minutes.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = torch.broadcast_tensors(first, second)  # type: ignore[no-untyped-call]
    first, second = first + key[0], second + key[1]
    for injection in range(1, INJECTIONS + 1):
        for bits in ROTATIONS[(injection - 1) % 2]:
            first += second
            low = _right(second, 32 - bits)
            second <<= bits
            second |= low
            second ^= first
        first += schedule[injection % 3]
        second += schedule[(injection + 1) % 3] + injection
    return torch.stack([first, second], dim=-1)


@_rounds.register_fake
def _(key: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return first.new_empty((*torch.broadcast_shapes(first.shape, second.shape), 2))  # type: ignore[no-untyped-call]


def _right(words: Tensor, bits: int) -> Tensor:
    """The words shifted to the right; that of int32 alone would repeat the sign."""
    return (words >> bits) & ((1 << 32 - bits) - 1)


def _words(name: str, value: Tensor, axes: str) -> Tensor:
    check_integers(name, value, axes)
    return value.to(torch.int32)
