"""Splits experts over the processes of a mesh, in any model."""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from moespec.backends.torch.collectives import Group
from moespec.backends.torch.nn.experts import Experts
from moespec.spec.errors import ConfigError

__all__ = ["ExpertParallel"]


class ExpertParallel(ParallelStyle):
    """A style for `parallelize_module` that splits the experts of `MoE` layers: each process holds some of the experts.

        parallelize_module(model, mesh["expert"], {"blocks.*.mlp.experts": ExpertParallel()})

    Every process routes its own images. Slots are sent to the process that holds the expert, and outputs are sent back: two
    all-to-alls in the forward pass, two in the backward pass. All processes of the mesh need the same numbers of images and tokens.
    Parameters become DTensors that are split along the first axis. As usual in data-parallel training, the gradient is the gradient
    of the mean loss over the processes, so do not divide the gradient. Over other mesh axes, `fully_shard` averages gradients.

    Raises ConfigError for a module that is not the `experts` of an `MoE`, and for a mesh that cannot split the experts evenly.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Experts):
            raise ConfigError(f"ExpertParallel: expected the `experts` of an MoE, got {type(module).__name__}")
        if device_mesh.ndim != 1:
            raise ConfigError(f"ExpertParallel: expected a mesh with one axis, got {device_mesh.ndim}")
        group = device_mesh.get_group()
        experts = module.fc1.weight.shape[0]
        if experts % group.size():
            raise ConfigError(f"experts: {experts} experts cannot be split evenly among {group.size()} processes")
        for linear in module.children():
            for name, parameter in list(linear.named_parameters()):
                whole: Any = distribute_tensor(parameter.detach(), device_mesh, [Shard(0)])
                linear.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))
        module.group = Group(group.group_name, group.size()) if group.size() > 1 else None
        return module
