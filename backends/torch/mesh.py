"""Training on a mesh of processes with one device each. Each process runs the single-device program on its share of the
images, with the exchanges that `OnMesh` adds.

The reductions of the update (gradients, the norm of the complete gradient, an optimiser's norms and means over a
complete parameter) run outside the program; see `moespec.backends.torch.sharded_state`.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from moespec.backends import torch as single
from moespec.backends.mesh import AXES, MeshSizes, Transport
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.processes import Process
from moespec.backends.pytrees import flatten
from moespec.backends.torch.arrays import default_device, from_numpy, use_device
from moespec.backends.torch.collectives import ALONE, Devices, gather
from moespec.backends.torch.expert_parallel import SplitOverGroup
from moespec.backends.torch.sharded_state import Part, SpreadState, pieces_of, read_state
from moespec.backends.torch.training import LossFunction, Params, StateUpdate, set_gradients, update
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ConfigError

__all__ = ["OnMesh", "devices", "join", "leave"]

SIOCGIFADDR = 0x8915
"""The ioctl request for an interface's address on Linux."""

Metrics = dict[str, Tensor]


def join(process: Process, address: str | None = None, timeout: float = 180.0) -> None:
    """Joins the process group. This process uses the GPU with its local index, or the CPU if there is no GPU.

    address: the IP address at which processes reach this machine. gloo uses the interface of `address` unless GLOO_SOCKET_IFNAME is set.
    timeout: seconds without a heartbeat after which a process counts as lost. torch's own timeout is ten times as long, at least 1800 s.

    Raises RuntimeError from torch.distributed if the other processes do not join in time.
    """
    if address and (network := _network(address)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", network)
    on_gpu = default_device().type == "cuda"
    if on_gpu:
        use_device(process.local)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{process.address}",
        rank=process.index,
        world_size=process.count,
        timeout=timedelta(seconds=max(1800, 10 * timeout)),
    )


def _network(address: str) -> str | None:
    """Returns the name of the network interface that has this IPv4 address, or None if there is none or the system is not Linux."""
    if sys.platform == "linux":
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # some interfaces have no address
                    asked = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()))
                    if socket.inet_ntoa(asked[20:24]) == address:
                        return name
    return None


def devices() -> int:
    """The number of devices, which is the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def leave() -> None:
    """Waits for the other processes, then disconnects."""
    dist.barrier()
    dist.destroy_process_group()


class OnMesh(SplitOverGroup):
    """The torch backend for models on a mesh that spans all processes.

    A training step takes a state and the rows that `put` returns. A function from `compile` takes parameters instead of a state.
    """

    def __init__(self, sizes: MeshSizes, *, transport: Transport = "model") -> None:
        """transport: see `SplitExperts`."""
        if sizes.devices != self.processes:
            raise ConfigError(f"the mesh ({sizes}) needs {sizes.devices} processes, but there are {self.processes}")
        self.devices = Devices(sizes)
        super().__init__(self.devices.groups.get(("expert",), ALONE), sizes)
        self.transport = transport
        self.bind_routers()

    def whole(self, params: Any) -> Any:
        """Returns complete parameters: gathers the parameters that are split over `fsdp`."""
        if isinstance(params, dict):
            return {name: self.whole(value) for name, value in params.items()}
        return gather(params.array, params.axis, self.devices.groups["fsdp",]) if isinstance(params, Part) else params

    def _total(self, array: Tensor) -> Tensor:
        return self.devices.sums([array], AXES)[0]

    def over_devices(self, by_image: Tensor, means: Metrics) -> tuple[Tensor, Metrics]:
        """Gathers the rows of all devices, and averages the metrics over all devices."""
        group = self.devices.group(AXES)
        rows = gather(by_image, 0, group) if group else by_image
        return rows, self.devices.means(means, AXES)

    # Processes.

    @property
    def process(self) -> int:
        """The index of this process."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def processes(self) -> int:
        """The number of processes."""
        return devices()

    def exchanged(self, value: str) -> list[str]:
        """Waits for all processes, and returns their values in process order."""
        if self.processes == 1:
            return [value]
        own = from_numpy(np.frombuffer(value.encode(), np.uint8))
        sizes = self._of_all(torch.tensor([len(own)], device=own.device))
        most = max(1, *map(int, sizes))
        texts = self._of_all(torch.nn.functional.pad(own, (0, most - len(own))))
        return [text[: int(size)].cpu().numpy().tobytes().decode() for text, size in zip(texts, sizes, strict=True)]

    def _of_all(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.processes)]
        dist.all_gather(tensors, tensor)
        return tensors

    # Arrays.

    def rows(self, batch: int) -> range:
        """The rows of a batch that this process puts on its device."""
        share = self.rows_of_device(batch)
        return range(self.process * share, (self.process + 1) * share)

    def put(self, tree: Any) -> Any:
        """Copies the rows of this process (nested dicts of NumPy arrays) to tensors on the device."""
        return from_numpy(tree)

    # Training.

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> SpreadState:
        """Restores a state that `export_state` of any backend exported. Each process reads only the slices that it needs."""
        return read_state(self.devices, exported, optimizer)

    def export_state(self, state: SpreadState) -> dict[str, Any]:
        """Exports the state with `Shards` instead of arrays. A `Shards` holds the parts that this process must save."""
        return pieces_of(state)

    def state_params(self, state: SpreadState) -> Params:
        """Returns this process's parts of the parameters, for a forward pass."""
        return state.marked({path: leaf.detach() for path, leaf in flatten(state.params).items()})

    def state_average(self, state: SpreadState) -> Params:
        """Returns this process's parts of the moving averages of the parameters."""
        return state.marked({path: leaf.detach() for path, leaf in flatten(state.params).items()} | state.average)

    def make_step(
        self,
        loss_function: LossFunction,
        optimizer: OptimizerConfig,
        *,
        accumulate: int = 1,
        averaged: bool = False,
        update_states: StateUpdate | None = None,
        compiled: bool = True,
    ) -> Callable[[SpreadState, Any, float], tuple[SpreadState, Metrics]]:
        """Returns the training step for the rows of this process. The loss and the metrics are means over groups and images.

        A single all-reduce sums the loss, the metrics and the gradients of parameters that every device holds.
        """
        check_at_least("accumulate", accumulate, 1)
        evaluate = self.compile(loss_function) if compiled else self.mapped(loss_function)

        def step(state: SpreadState, batch: Any, learning_rate: float) -> tuple[SpreadState, Metrics]:
            share = 1 / self.sizes.devices
            given = [state.marked({}), *([self.state_average(state)] if averaged else [])]
            found = set_gradients(evaluate, given, state.trained(), batch, accumulate, share=share)
            metrics, sums = state.add_gradients(*found)
            metrics["grad_norm"] = state.norm()
            update(state, metrics["grad_norm"], learning_rate, update_states, sums)
            return state, metrics

        return step

    def compile(self, function: Callable[..., Any], *, compiler: str = "inductor") -> Callable[..., Any]:
        """Compiles `function(params, rows)` for the parameters of a state and the rows of this process.

        The result of `function` must be the same on all devices, which holds for results of `over_devices`.
        """
        compiled: Callable[..., Any] = single.compile(self.mapped(function), compiler=compiler)
        return compiled

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `function` for parameters that are split over processes. The wrapper gathers all parameters outside of
        blocks. Later, the model gathers the parameters of one block at a time."""

        def run(params: Params, rows: Any, *average: Params) -> Any:
            return function(self.outside_of_blocks(params), rows, *map(self.outside_of_blocks, average))

        return run
