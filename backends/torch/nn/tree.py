"""Modules that store nested dicts of arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moespec.backends.optimizer import STATE, is_fixed
from moespec.backends.torch.expert_parallel import is_split
from moespec.backends.torch.nn.state import RouterState


class ParameterTree(nn.Module):
    """A module that stores a nested dict of arrays as parameters, with constants and router states as buffers.

    The array in `{"blocks": {"1": {"w": ...}}}` has the state-dict name `blocks.1.w`. A number becomes a parameter of
    shape (1,), because `fully_shard` requires an axis.

    device: the device of all tensors (default: torch's default device). dtype: the dtype of parameters (default: the arrays' dtypes).
    """

    def __init__(
        self, arrays: Mapping[str, Any], *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._names = tuple(arrays)
        self._numbers = frozenset(
            name for name, value in arrays.items() if not isinstance(value, Mapping) and np.ndim(value) == 0
        )
        device = torch.get_default_device() if device is None else device
        for name, value in arrays.items():
            if name == STATE and isinstance(value, Mapping):
                self.add_module(name, RouterState(value, device))
            elif isinstance(value, Mapping):
                self.add_module(name, ParameterTree(value, device=device, dtype=dtype))
            elif is_fixed(("router", name)):
                self.register_buffer(name, torch.from_numpy(_constant(name, value)).to(device))
            else:
                self.register_parameter(
                    name, nn.Parameter(torch.from_numpy(np.array(value, ndmin=1, order="C")).to(device, dtype))
                )

    def params(self) -> dict[str, Any]:
        """The nested dict, with the parameters themselves as leaves. In this dict, a number has shape ()."""
        return {name: self._leaf(name) for name in self._names}

    def _leaf(self, name: str) -> Any:
        child = getattr(self, name)
        if isinstance(child, ParameterTree | RouterState):
            return child.params()
        return child.reshape(()) if name in self._numbers else child


def assign(tensor: Tensor, values: NDArray[Any]) -> None:
    """Copies values into a parameter or buffer, in its dtype. A tensor that is split among processes receives only its part."""
    with torch.no_grad():
        source = torch.from_numpy(np.array(values).reshape(tensor.shape)).to(tensor.device, tensor.dtype)
        if is_split(tensor):
            from torch.distributed.tensor import distribute_tensor

            source = distribute_tensor(source, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(source)


def _constant(name: str, value: Any) -> NDArray[Any]:
    """Stores hash tables as integers, because `.to(torch.bfloat16)` would round expert numbers that are stored as floats."""
    return np.array(value, np.int32 if name == "tables" else None)
