"""Exchanges tensors between processes with torch's functional collectives, which `torch.compile` can trace, and defines gradients.

    exchange    all-to-all along the first axis      gradient: `exchange`
    gather      joins the parts of all processes     gradient: this process's part of the sum over processes
    add         sums tensors over processes          no gradient

`Devices` holds the process groups of a mesh; each process has one device.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from moespec.backends.mesh import AXES, MeshSizes, Split
from moespec.backends.torch.arrays import default_device
from moespec.backends.torch.private import collectives


class Group(NamedTuple):
    """A group of communicating processes: its name in torch, and its size."""

    name: str
    size: int


ALONE = Group("", 1)
"""The group of a single process. No collective uses this group."""


def exchange(x: Tensor, group: Group) -> Tensor:
    """Splits `x` (n A, ...) into n parts and sends part i to process i. Returns the received parts in process order: (n A, ...)."""
    result: Tensor = _Exchange.apply(x, group.name, group.size)  # type: ignore[no-untyped-call]
    return result


def gather(x: Tensor, axis: int, group: Group) -> Tensor:
    """Gathers `x` from all processes, in process order, and joins the parts along an axis."""
    result: Tensor = _Gather.apply(x, axis, group.name, group.size)  # type: ignore[no-untyped-call]
    return result


def add(tensors: list[Tensor], group: Group) -> list[Tensor]:
    """Sums each tensor over the processes, in a single reduction. Each sum keeps the dtype of its tensor."""
    flat = torch.cat([x.detach().reshape(-1) for x in tensors])
    total = collectives.wait_tensor(collectives.all_reduce(flat, "sum", group.name))
    pieces = total.split([x.numel() for x in tensors])
    return [piece.reshape(x.shape).to(x.dtype) for piece, x in zip(pieces, tensors, strict=True)]


class Devices:
    """This process's view of a mesh. `place` maps each axis to the index of this process along the axis. `groups` maps each
    set of axes with more than one device to a process group."""

    def __init__(self, sizes: MeshSizes) -> None:
        self.sizes = sizes
        self.place = dict.fromkeys(AXES, 0)
        self.groups: dict[tuple[str, ...], Group] = {}
        if sizes.devices > 1:
            mesh = init_device_mesh(default_device().type, sizes.shape, mesh_dim_names=AXES)
            self.place = {axis: mesh.get_local_rank(axis) for axis in AXES}
            wide = [axis for axis in AXES if getattr(sizes, axis) > 1]
            for axes in (axes for count in range(len(wide)) for axes in itertools.combinations(wide, count + 1)):
                group = (mesh[axes] if len(axes) == 1 else mesh[axes]._flatten()).get_group()
                self.groups[axes] = Group(group.group_name, group.size())

    def group(self, axes: Sequence[str]) -> Group | None:
        """Returns the process group along the given axes, or None if these axes have only one device."""
        return self.groups.get(tuple([axis for axis in AXES if axis in axes and getattr(self.sizes, axis) > 1]))

    def sums(self, tensors: list[Tensor], axes: Sequence[str]) -> list[Tensor]:
        """Sums each tensor over the devices along the given axes, in a single reduction."""
        group = self.group(axes)
        return add(tensors, group) if tensors and group else tensors

    def means(self, tensors: dict[str, Tensor], axes: Sequence[str]) -> dict[str, Tensor]:
        """Averages each tensor over the devices along the given axes, in a single reduction."""
        sums = self.sums(list(tensors.values()), axes)
        return {name: total / self.sizes.size(axes) for name, total in zip(tensors, sums, strict=True)}

    def index(self, shape: Sequence[int], split: Split) -> tuple[slice, ...]:
        """Returns the slices that select this device's part of an array with the given shape."""
        index = []
        for length, axis in zip(shape, split, strict=True):
            size = length // getattr(self.sizes, axis) if axis else length
            start = self.place[axis] * size if axis else 0
            index.append(slice(start, start + size))
        return tuple(index)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, size: int) -> Tensor:
        ctx.group = name, size
        return _exchanged(x, name, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(gradient, *ctx.group), None, None


def _exchanged(x: Tensor, name: str, size: int) -> Tensor:
    rows = [x.shape[0] // size] * size
    result: Tensor = collectives.wait_tensor(collectives.all_to_all_single(x.contiguous(), rows, rows, name))
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, name: str, size: int) -> Tensor:
        ctx.group = axis, name, size
        parts: Tensor = collectives.wait_tensor(collectives.all_gather_into_tensor(x.contiguous(), size, name))
        return torch.cat(parts.chunk(size), axis) if axis else parts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        axis, name, size = ctx.group
        parts = torch.cat(gradient.chunk(size, axis)) if axis else gradient.contiguous()
        part: Tensor = collectives.wait_tensor(collectives.reduce_scatter_tensor(parts, "sum", size, name))
        return part, None, None, None
