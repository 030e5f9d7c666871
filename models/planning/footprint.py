"""Bytes that a device keeps of a model's parameters, their gradients and what the optimiser keeps, from how a mesh splits them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from moespec.backends.mesh import MeshSizes, Split, axes_of_slot, leaves, split_axes
from moespec.backends.optimizer import OptimizerConfig

__all__ = ["Owned", "bytes_of_slot", "owned"]


class Owned(NamedTuple):
    """Bytes of a device. computed: of the parameters as it computes with them, those that `fsdp` splits whole."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    computed: int = 0

    def __add__(self, other: Any) -> "Owned":
        return Owned(*map(sum, zip(self, other, strict=True)))


def owned(shapes: Mapping[str, Any], optimizer: OptimizerConfig, sizes: MeshSizes) -> Owned:
    """Of all parameters, from a nested dict of their shapes. Raises ConfigError for experts that do not divide."""
    total = Owned()
    for path, shape in leaves(shapes):
        total += of_parameter(path, tuple(shape), optimizer, sizes)
    return total


def of_parameter(path: tuple[str, ...], shape: tuple[int, ...], optimizer: OptimizerConfig, sizes: MeshSizes) -> Owned:
    """Of one parameter. The gradient is that which the optimiser takes, in float32 as the parameter; none of one not trained."""
    split = split_axes(path, shape, sizes)
    own = 4 * part(shape, split, sizes)
    kept = sum(
        bytes_of_slot(slot, optimizer) * part(of_slot, axes_of_slot(slot, shape, split, optimizer.factored_from), sizes)
        for slot, of_slot in optimizer.slots(path, shape).items()
    )
    gathered = own * (sizes.fsdp if "fsdp" in split else 1)
    return Owned(own, own if optimizer.rate_of(path) else 0, kept, gathered)


def part(shape: tuple[int, ...], split: Split, sizes: MeshSizes) -> int:
    """Numbers that a device has of an array."""
    return math.prod(shape) // sizes.size([axis for axis in split if axis])


def bytes_of_slot(slot: str, optimizer: OptimizerConfig) -> int:
    """Bytes of a number in a slot."""
    return 2 if slot == "mu" and optimizer.momentum_dtype == "bfloat16" else 4
