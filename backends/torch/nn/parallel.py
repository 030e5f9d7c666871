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
    """Splits the experts of `MoE` layers in `parallelize_module`: each process holds some of the experts.

        parallelize_module(model, mesh["expert"], {"blocks.*.mlp.experts": ExpertParallel()})

    Every process routes its own images. The contents of slots go to the process that has the expert and come back: two all-to-alls
    forward, two backward. All processes of the mesh need the same number of images, with the same number of tokens. Parameters become
    DTensors split along their first axis. As usual in data-parallel training, the gradient is the gradient of the mean loss over the
    processes, so do not divide it. Over other mesh axes, `fully_shard` takes the mean.

    Raises ConfigError for a module that is not the `experts` of an `MoE`, and for a mesh that does not divide them.
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
