"""The random number generator, and dropout.

Words are int32, the only 32-bit integer dtype with every operation on every device. Sums of words wrap around on overflow.
"""

import torch
from torch import Tensor

from moespec.backends.torch.operators import operator, uses_kernel
from moespec.spec.algorithms.dropout import check_draws, threshold
from moespec.spec.algorithms.threefry import INJECTIONS, PARITY, ROTATIONS
from moespec.spec.checks import check_floating, check_rank

__all__ = ["dropout"]


def dropout(x: Tensor, draws: Tensor, *, rate: float) -> Tensor:
    """x (...), draws (...) -> (...), in the dtype of x."""
    check_floating("x", x)
    check_rank("x", x, "...")
    check_floating("draws", draws)
    check_draws(draws, x)
    return torch.where(draws >= threshold(rate), x / (1 - rate), torch.zeros_like(x))


@operator
def threefry(key: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Threefry-2x32-20 of the broadcast counters (first, second): (..., 2).

    This function is an operator, because a compiler would unroll its 20 rounds at each call, which takes minutes.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = torch.broadcast_tensors(first, second)  # type: ignore[no-untyped-call]
    if uses_kernel(first):
        from moespec.backends.torch import kernels

        return kernels.threefry(key, first, second)
    first, second = first + key[0], second + key[1]
    for injection in range(1, INJECTIONS + 1):
        for bits in ROTATIONS[(injection - 1) % 2]:
            first += second
            low = shift_right_logical(second, 32 - bits)
            second <<= bits
            second |= low
            second ^= first
        first += schedule[injection % 3]
        second += schedule[(injection + 1) % 3] + injection
    return torch.stack([first, second], dim=-1)


@threefry.register_fake
def _(key: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return first.new_empty((*torch.broadcast_shapes(first.shape, second.shape), 2))  # type: ignore[no-untyped-call]


def shift_right_logical(words: Tensor, bits: int) -> Tensor:
    """Shifts the words right and fills with zeros. An int32 shift would repeat the sign bit."""
    return (words >> bits) & ((1 << 32 - bits) - 1)
