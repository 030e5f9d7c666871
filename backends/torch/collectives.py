"""What processes exchange in a program: torch's functional collectives, which `torch.compile` traces, with their gradients.

    exchange    all-to-all along the first axis           gradient: `exchange`
    gather      the parts of all, along an axis           gradient: the sums over all, of which each has its part
    add         the sum over all                          no gradient

A group of processes is given as its name and the number of processes in it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

_operators: Any = torch.ops._c10d_functional


class Group(NamedTuple):
    """Processes that exchange something: the name that torch knows them by, and how many they are."""

    name: str
    size: int


def exchange(x: Tensor, group: Group) -> Tensor:
    """`x` (n A, ...) in n parts, of which process i gets part i: the parts of the n processes, in their order, (n A, ...)."""
    result: Tensor = _Exchange.apply(x, group.name, group.size)  # type: ignore[no-untyped-call]
    return result


def gather(x: Tensor, axis: int, group: Group) -> Tensor:
    """The `x` of all processes, in their order, joined along an axis."""
    result: Tensor = _Gather.apply(x, axis, group.name, group.size)  # type: ignore[no-untyped-call]
    return result


def add(tensors: list[Tensor], group: Group) -> list[Tensor]:
    """The sums over the processes of a list of tensors, in one reduction, each in its dtype."""
    flat = torch.cat([x.detach().reshape(-1) for x in tensors])
    total = _operators.wait_tensor(_operators.all_reduce_(flat, "sum", group.name))
    pieces = total.split([x.numel() for x in tensors])
    return [piece.reshape(x.shape).to(x.dtype) for piece, x in zip(pieces, tensors, strict=True)]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, size: int) -> Tensor:
        ctx.group = name, size
        return _exchanged(x, name, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _exchanged(gradient, *ctx.group), None, None


def _exchanged(x: Tensor, name: str, size: int) -> Tensor:
    rows = [x.shape[0] // size] * size
    result: Tensor = _operators.wait_tensor(_operators.all_to_all_single(x.contiguous(), rows, rows, name))
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, name: str, size: int) -> Tensor:
        ctx.group = axis, name, size
        parts = _operators.wait_tensor(_operators.all_gather_into_tensor(x.contiguous(), size, name))
        return parts.reshape(size, *x.shape).movedim(0, axis).flatten(axis, axis + 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        axis, name, size = ctx.group
        parts = gradient.unflatten(axis, (size, -1)).movedim(axis, 0).contiguous().flatten(0, 1)
        part: Tensor = _operators.wait_tensor(_operators.reduce_scatter_tensor(parts, "sum", size, name))
        return part, None, None, None
