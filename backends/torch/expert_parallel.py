"""Splits experts among the processes of a group: slots are sent to the processes that hold their experts, and the outputs are sent back."""

from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor
from torch.autograd import Function

import moespec.backends.torch as single
from moespec.backends.expert_parallel import SplitExperts
from moespec.backends.mesh import MeshSizes
from moespec.backends.torch.collectives import Group, exchange

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class SplitOverGroup(SplitExperts):
    """The torch backend, with experts split over a group of processes.

    A process sends slots in expert order, as in `moe_layer`. The receiver gets slots ordered by sender and copies them into expert order.
    """

    single = single

    def __init__(self, group: Group, sizes: MeshSizes | None = None) -> None:
        """sizes: the sizes of a mesh whose axis `expert` is this group; default: a mesh with no other axis."""
        self.group, self.sizes = group, MeshSizes(expert=group.size) if sizes is None else sizes

    def _there(self, slots: Tensor) -> Tensor:
        """Sends the slots (G, E, C, D) of this device's groups to the devices that hold the experts. Returns (n G, E / n, C, D)."""
        groups, experts, *place = slots.shape
        n = self.group.size
        by_sender = exchange(slots.transpose(0, 1), self.group)
        return by_sender.reshape(n, experts // n, groups, *place).transpose(0, 1).flatten(1, 2).transpose(0, 1)

    def _back(self, slots: Tensor) -> Tensor:
        groups, experts, *place = slots.shape
        n = self.group.size
        by_receiver = slots.transpose(0, 1).reshape(experts, n, groups // n, *place).transpose(0, 1)
        return exchange(by_receiver.flatten(0, 1), self.group).transpose(0, 1)


def is_split(tensor: Tensor) -> "TypeGuard[DTensor]":
    """True for a DTensor. Tests for an attribute, not for the class, because importing DTensor imports sympy (half a second)."""
    return hasattr(tensor, "device_mesh")


def mean_gradient(parameter: Tensor, group: Group) -> Tensor:
    """Returns this process's part of a split expert parameter. The part gets the gradient of the loss averaged over the group's
    processes: the exchange sums the gradients of all processes, and the backward pass divides the sum by the number of processes."""
    local = parameter.to_local() if is_split(parameter) else parameter
    mean: Tensor = _MeanGradient.apply(local, group.size)  # type: ignore[no-untyped-call]
    return mean


class _MeanGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.size, None
