"""Computes the bytes that a device stores for parameters, gradients and optimiser state, and the bytes that it moves in a training step.

Over the links, a device receives the following, and sends the same amount:

    slots        slots that other devices send to this device's experts, and this device's own slots, which experts on other devices send
                 back. Both transfers happen in the forward and the backward pass, and again in the forward pass of recomputed blocks.
    gathers      the parameter shards that other devices along `fsdp` hold, in float32, for each micro-batch and again for recomputed blocks
    reductions   the gradients. If n devices hold the same shard, each receives 2 (n - 1)/n times the shard's size once per step.
                 Along `fsdp`, where gradients are scattered, each device receives n - 1 shards for each micro-batch.

Memory traffic: the forward pass, the backward pass and the optimiser each read the parameters; recomputed blocks read them once more. The
optimiser writes the parameters, and reads and writes its state. Gradients are written and read for each micro-batch. Activations are
not included.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moespec.backends.mesh import AXES, MeshSizes, Split, Transport, axes_of_slot, split_axes
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.pytrees import leaves
from moespec.models.counts import slots
from moespec.models.families import family
from moespec.spec.routing import Params
from moespec.training.objectives.record import Passes
from moespec.training.planning.activations import bytes_of_dtype

__all__ = ["Owned", "Row", "links", "memory_traffic", "owned", "rows"]

_BLOCK = re.compile(r"^(\D+)/(\d+)/(.+)$")


class Owned(NamedTuple):
    """Bytes on a device. computed: the bytes of the parameters during computation, when shards along `fsdp` are gathered."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    computed: int = 0

    def __add__(self, other: Any) -> "Owned":
        return Owned(*map(sum, zip(self, other, strict=True)))


def owned(shapes: Mapping[str, Any], optimizer: OptimizerConfig, sizes: MeshSizes) -> Owned:
    """Returns the bytes on a device for parameters with these nested shapes. Raises ConfigError if experts cannot be divided evenly."""
    total = Owned()
    for path, shape in leaves(shapes):
        split = split_axes(path, tuple(shape), sizes)
        own = 4 * part(shape, split, sizes)
        kept = 0
        for slot, of_slot in optimizer.slots(path, tuple(shape)).items():
            bytes_of = 2 if slot == "mu" and optimizer.momentum_dtype == "bfloat16" else 4
            kept += bytes_of * part(of_slot, axes_of_slot(slot, shape, split, optimizer.factored_from), sizes)
        gathered = own * (sizes.fsdp if "fsdp" in split else 1)
        # Gradients are float32 like the parameters; a parameter that is not trained has no gradient.
        total += Owned(own, own if optimizer.rate_of(path) else 0, kept, gathered)
    return total


def part(shape: tuple[int, ...], split: Split, sizes: MeshSizes) -> int:
    """The number of elements of an array that one device holds."""
    return math.prod(shape) // sizes.size([axis for axis in split if axis])


def links(
    towers: Sequence[Passes],
    shapes: Params,
    optimizer: OptimizerConfig,
    sizes: MeshSizes,
    *,
    images: int,
    accumulate: int,
    recompute: bool,
    transport: Transport,
) -> dict[str, float]:
    """Returns the bytes that a device with `images` images receives in a step, by purpose.

    towers: the towers whose slots are exchanged. transport: determines the dtype of exchanged slots.
    """
    received = {"slots": 0.0, "gathers": 0.0, "reductions": 0.0}
    for tower, trained, forward in towers if sizes.expert > 1 else ():
        of_slot = bytes_of_dtype(tower) if transport == "model" else 2
        ways = accumulate * (trained * (6 if recompute else 4) + 2 * forward) * (1 - 1 / sizes.expert)
        for layer in family(tower).moe_layers(tower, images // accumulate):
            received["slots"] += ways * layer.groups * slots(layer, train=True) * layer.settings.width * of_slot
    for path, shape in leaves(shapes):
        split = split_axes(path, shape, sizes)
        own = 4 * math.prod(shape) / sizes.size([axis for axis in split if axis])
        moved = bool(optimizer.rate_of(path))
        if "fsdp" in split:
            again = recompute and "blocks" in path
            received["gathers"] += (2 if again else 1) * accumulate * own * (sizes.fsdp - 1)
            received["reductions"] += moved * accumulate * own * (sizes.fsdp - 1)
        others = sizes.size([axis for axis in AXES if axis not in split])
        received["reductions"] += moved * 2 * own * (1 - 1 / others)
    return received


def memory_traffic(owned: Owned, *, accumulate: int, recompute: bool) -> float:
    """Returns the bytes that a step moves between memory and cores, without activations."""
    passes = (3 if recompute else 2) * accumulate
    return passes * owned.computed + 2 * owned.parameters + 2 * accumulate * owned.gradients + 2 * owned.optimizer


class Row(NamedTuple):
    """A row for parameters with the same shape and split whose names differ only in the block number. names: a pattern, such as
    `blocks/{1,3-5}/mlp/w1`; parameters: the number of parameters. bytes: the float32 size of one parameter on a device."""

    names: str
    parameters: int
    shape: tuple[int, ...]
    split: Split
    bytes: int


def rows(shapes: Mapping[str, Any], sizes: MeshSizes) -> list[Row]:
    """Groups parameters into rows, in order. shapes: the nested dict of parameter shapes."""
    numbers: dict[tuple[str, tuple[int, ...], Split], list[int]] = {}
    for path, shape in leaves(shapes):
        split, name, number = split_axes(path, shape, sizes), "/".join(path), -1
        if match := _BLOCK.match(name):
            name, number = f"{match[1]}/*/{match[3]}", int(match[2])
        numbers.setdefault((name, tuple(shape), split), []).append(number)
    return [
        Row(name.replace("*", ranges(which), 1), len(which), shape, split, 4 * part(shape, split, sizes))
        for (name, shape, split), which in numbers.items()
    ]


def ranges(numbers: list[int]) -> str:
    """Formats ascending numbers, with consecutive numbers as ranges.

    >>> ranges([1]), ranges([0, 1, 2, 5])
    ('1', '{0-2,5}')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"
