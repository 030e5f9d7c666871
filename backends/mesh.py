"""The layout of training on several devices, which all backends share.

A mesh has three axes. All three axes split a batch, in the order of `AXES`, and each device routes the groups of its images.

    * Along `data`, each device holds every parameter that no other mesh axis splits.
    * Along `fsdp`, each device holds a shard of each large parameter, and each block gathers its parameters for the computation.
    * Along `expert`, each device holds some of the experts. Two all-to-alls per layer send the contents of slots and return the outputs.

The axis `expert` is innermost, so that devices along this axis are neighbours.

Source: GShard (Lepikhin et al. 2021, arXiv 2006.16668, section 3: experts split, the rest copied, all-to-all around them);
google-research/vmoe, vmoe/partitioning.py (a mesh of an expert and a replica axis); ZeRO, stage 3 (Rajbhandari et al. 2020,
arXiv 1910.02054), which torch calls fully sharded data parallel.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from moespec.backends.optimizer import is_fixed
from moespec.backends.optimizer_options import factored_axes
from moespec.backends.pytrees import Path, leaves
from moespec.spec.errors import ConfigError
from moespec.spec.names import renamed, warn_renamed
from moespec.spec.values import present

__all__ = [
    "AXES",
    "MeshSizes",
    "Shards",
    "Split",
    "axes_of_slot",
    "check_experts",
    "check_whole_experts",
    "mesh_sizes",
    "split_axes",
    "splits",
    "start_of",
]

AXES = ("data", "fsdp", "expert")
"""The axes of a mesh, outermost first."""

EXPERTS = r"(^|/)experts/[^/]+$"
"""The paths of expert parameters. Their first axis is the experts axis."""
SMALL = 2**14
"""Parameters with fewer entries are not split over `fsdp`, because gathering them costs more than storing them on each device."""

Split = tuple[str | None, ...]
"""For each axis of a parameter, the mesh axis that splits it, or None."""


Transport = Literal["model", "bfloat16"]


@dataclass(frozen=True)
class MeshSizes:
    """The number of devices along each axis of a mesh. Raises ConfigError unless each number is a positive integer."""

    data: int = 1
    fsdp: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            if type(size := getattr(self, name)) is not int or size < 1:
                raise ConfigError(f"mesh.{name}={size!r}: expected an integer >= 1")

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of devices along the mesh axes, in the order of `AXES`."""
        return self.data, self.fsdp, self.expert

    def size(self, axes: Sequence[str]) -> int:
        """The product of the numbers of devices along several axes."""
        return math.prod([getattr(self, name) for name in axes])

    def __str__(self) -> str:
        return (
            " x ".join(f"{name} {size}" for name, size in zip(AXES, self.shape, strict=True) if size > 1)
            or "one device"
        )


def mesh_sizes(devices: int, *, data: int | None = None, fsdp: int = 1, expert: int = 1) -> MeshSizes:
    """The sizes of a mesh of `devices` devices. If `data` is None, the axis `data` gets the remaining devices.

    Raises ConfigError unless the product of the sizes is `devices`.

    >>> mesh_sizes(8, expert=2), str(mesh_sizes(8, expert=2))
    (MeshSizes(data=4, fsdp=1, expert=2), 'data 4 x expert 2')
    """
    rest = MeshSizes(1, fsdp, expert).devices
    if data is None:
        if devices % rest:
            there = "there is one device" if devices == 1 else f"{rest} does not divide the {devices} devices"
            raise ConfigError(f"mesh.fsdp={fsdp!r}, mesh.expert={expert!r}: {there}; a run may resume on another mesh")
        data = devices // rest
    sizes = MeshSizes(data, fsdp, expert)
    if sizes.devices != devices:
        raise ConfigError(
            f"mesh.data={data!r}, mesh.fsdp={fsdp!r}, mesh.expert={expert!r} need {sizes.devices} devices, but there are {devices}"
        )
    return sizes


def split_axes(path: Sequence[str], shape: Sequence[int], sizes: MeshSizes) -> Split:
    """The split of the parameter at `path`. Raises ConfigError if the mesh axis `expert` does not divide the number of experts.

    The mesh axis `expert` splits the first axis of expert parameters. The mesh axis `fsdp` splits parameters with at least `SMALL` entries
    along the largest remaining axis whose length it divides. Ties go to the first axis.

    >>> split_axes(("blocks", "1", "moe", "experts", "w1"), (8, 64, 256), MeshSizes(fsdp=2, expert=4))
    ('expert', None, 'fsdp')
    """
    split: list[str | None] = [None] * len(shape)
    if not path or is_fixed(path):
        return tuple(split)
    if sizes.expert > 1 and re.search(EXPERTS, "/".join(path)):
        check_experts(shape[0], sizes, "/".join(path))
        split[0] = "expert"
    if sizes.fsdp > 1 and math.prod(shape) >= SMALL:
        fits = [axis for axis, size in enumerate(shape) if split[axis] is None and size % sizes.fsdp == 0]
        if fits:
            split[max(fits, key=lambda axis: shape[axis])] = "fsdp"
    return tuple(split)


def check_experts(experts: int, sizes: MeshSizes, where: str) -> None:
    """Raises ConfigError unless all devices along the mesh axis `expert` get the same number of experts."""
    if experts % sizes.expert:
        raise ConfigError(f"mesh.expert={sizes.expert!r} does not divide the {experts} experts of {where}")


def check_whole_experts(layer: str, sizes: MeshSizes) -> None:
    """Raises ConfigError if experts are split. `layer` names a layer that needs all experts on each device."""
    if sizes.expert > 1:
        raise ConfigError(
            f"mesh.expert={sizes.expert!r}: expected 1, since {layer} mixes its experts and each device needs all of them"
        )


def splits(shapes: Mapping[str, Any], sizes: MeshSizes) -> dict[Path, Split]:
    """The split of each parameter, by path, for a nested dict of parameter shapes."""
    return {path: split_axes(path, shape, sizes) for path, shape in leaves(shapes)}


def axes_of_slot(slot: str, shape: Sequence[int], split: Split, factored_from: int | None) -> Split:
    """The split of the array that the optimiser keeps in `slot` for a parameter with this shape and this split."""
    if slot not in ("row", "column"):
        return split
    lesser, largest = present("factored_from", factored_axes(shape, factored_from or 0))
    absent = largest if slot == "row" else lesser
    return split[:absent] + split[absent + 1 :]


@dataclass(frozen=True)
class Shards:
    """The shards of an array that one process holds. `shards` contains the start indices and the values of each shard."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shards: tuple[tuple[tuple[int, ...], NDArray[Any]], ...]

    @property
    def pieces(self) -> tuple[tuple[tuple[int, ...], NDArray[Any]], ...]:
        """The deprecated name of `shards`."""
        warn_renamed("Pieces.pieces", "Shards.shards")
        return self.shards


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Pieces": "Shards"})


def start_of(index: Sequence[slice]) -> tuple[int, ...]:
    """Returns the start of each slice in `index`, the position of a shard in an array."""
    return tuple(part.start or 0 for part in index)
