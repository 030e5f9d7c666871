"""Training on a mesh of processes, each with one device: it runs the program of one device on its images, with the exchanges
that `OnMesh` adds.

A parameter of a state is a tensor with what the process has of it. Where that is a part along `fsdp`, the program is given
a `_Part`, which `OnMesh.whole` gathers.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from moespec.backends import torch as single
from moespec.backends.mesh import (
    AXES,
    MeshSizes,
    Pieces,
    Split,
    axes_of_slot,
    check_whole_experts,
    leaves,
    split_axes,
    start_of,
)
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.processes import Process
from moespec.backends.torch import optimizers
from moespec.backends.torch.arrays import default_device, from_numpy, to_numpy
from moespec.backends.torch.collectives import Group, add, exchange, gather
from moespec.backends.torch.network import expert_mlp
from moespec.backends.torch.optimizers import Extent
from moespec.backends.torch.slots import SlotRouting, SoftRouting, moe_layer
from moespec.backends.torch.training import (
    Leaves,
    LossFunction,
    Params,
    TrainState,
    kept_leaves,
    norm_of,
    set_gradients,
    update,
)
from moespec.backends.torch.trees import Path, flatten, unflatten
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ConfigError, ShapeError

__all__ = ["OnMesh", "join", "leave"]

Metrics = dict[str, Tensor]
SPLITTING = ("fsdp", "expert")
"""The axes that split parameters."""


def join(process: Process) -> None:
    """Joins the other processes. The device of this one is the GPU of its number on its machine, or the CPU.

    Raises the errors of torch.distributed when the others do not come in time.
    """
    on_gpu = default_device().type == "cuda"
    if on_gpu:
        torch.cuda.set_device(process.local)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{process.address}",
        rank=process.index,
        world_size=process.count,
    )


def leave() -> None:
    """Waits for the other processes and leaves them."""
    dist.barrier()
    dist.destroy_process_group()


class _Part(NamedTuple):
    """What a device has of a parameter whose `axis` is split over `fsdp`."""

    array: Tensor
    axis: int


class _Extent(Extent):
    """A parameter of a `shape` that `split` says how a mesh splits."""

    def __init__(self, mesh: "OnMesh", shape: Sequence[int], split: Split) -> None:
        super().__init__(shape)
        self.mesh, self.split = mesh, split

    def norms(self, *tensors: Tensor) -> Sequence[Tensor]:
        axes = [axis for axis in self.split if axis]
        norms = super().norms(*tensors)
        return [x.sqrt() for x in self.mesh.sums([norm.square() for norm in norms], axes)] if axes else norms

    def mean(self, x: Tensor, axis: int) -> Tensor:
        over = self.split[axis]
        mean = super().mean(x, axis)
        return self.mesh.means([mean], [over])[0] if over else mean


@dataclass
class _State(TrainState):
    """A state of tensors that are parts, with what they are parts of."""

    extents: dict[Path, _Extent]

    def shape_of(self, path: Path) -> tuple[int, ...]:
        return self.extents[path].shape

    def marked(self, leaves: Leaves) -> Params:
        """The parameters for a program, with `leaves` in place of those that these are."""
        given = {**flatten(self.params), **leaves}
        split = {path: extent.split for path, extent in self.extents.items()}
        return unflatten(
            {
                path: _Part(leaf, split[path].index("fsdp")) if "fsdp" in split[path] else leaf
                for path, leaf in given.items()
            }
        )


class OnMesh:
    """The torch backend for models on a mesh of all processes.

    A step and what `compile` makes take parameters of a state, and the rows of this process, as `put` makes them.
    """

    def __init__(self, sizes: MeshSizes) -> None:
        if sizes.devices != self.processes:
            raise ConfigError(f"a mesh of {sizes.devices} devices ({sizes}): there are {self.processes} processes")
        self.sizes = sizes
        self.groups, self.place = _groups(sizes)

    def __getattr__(self, name: str) -> Any:
        """Of the backend, what is the same on a mesh."""
        return getattr(single, name)

    # The layer.

    def moe_layer(
        self, tokens: Tensor, routing: SlotRouting | SoftRouting, experts: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """As of one device, where `experts` are those that the device has: what is in their slots comes from all devices along
        `expert`, and goes back."""
        if self.sizes.expert == 1:
            return moe_layer(tokens, routing, experts)
        return moe_layer(tokens, routing, lambda slots: self._back(experts(self._there(slots))))

    def moe_mlp(
        self,
        tokens: Tensor,
        routing: SlotRouting | SoftRouting,
        params: Mapping[str, Tensor],
        *,
        gelu: str = "tanh",
    ) -> Tensor:
        """As of one device, with the experts that the device has. Where experts are split all slots travel, the empty too."""
        if self.sizes.expert == 1:
            result: Tensor = single.moe_mlp(tokens, routing, params, gelu=gelu)
            return result
        return self.moe_layer(tokens, routing, partial(expert_mlp, params=params, gelu=gelu))

    def multi_hash_mlp(self, *arguments: Any, **options: Any) -> Tensor:
        """As of one device. Raises ConfigError where experts are split."""
        check_whole_experts("MultiHash", self.sizes)
        result: Tensor = single.multi_hash_mlp(*arguments, **options)
        return result

    # What is sent has all slots of an expert together, as `moe_layer` has them in memory; what comes is by sender, and is
    # copied into that order.

    def _there(self, slots: Tensor) -> Tensor:
        """(G, E, C, D) of the device's groups to (n G, E / n, C, D) of its experts."""
        by_sender = exchange(slots.transpose(0, 1), self.groups["expert",]).unflatten(0, (self.sizes.expert, -1))
        return by_sender.transpose(0, 1).flatten(1, 2).transpose(0, 1)

    def _back(self, slots: Tensor) -> Tensor:
        by_receiver = slots.transpose(0, 1).unflatten(1, (self.sizes.expert, -1)).transpose(0, 1)
        return exchange(by_receiver.flatten(0, 1), self.groups["expert",]).transpose(0, 1)

    def whole(self, params: Any) -> Any:
        """Parameters with those that are split over `fsdp` gathered."""
        if isinstance(params, dict):
            return {name: self.whole(value) for name, value in params.items()}
        return gather(params.array, params.axis, self.groups["fsdp",]) if isinstance(params, _Part) else params

    def over_devices(self, by_image: Tensor, means: Metrics) -> tuple[Tensor, Metrics]:
        """The rows of all devices, and the means over all of them."""
        group = self._group(AXES)
        rows = gather(by_image, 0, group) if group else by_image
        return rows, dict(zip(means, self.means(list(means.values()), AXES), strict=True))

    # Sums over devices.

    def _group(self, axes: Sequence[str]) -> Group | None:
        """The devices along some axes, None if this is the only one."""
        return self.groups.get(tuple(axis for axis in AXES if axis in axes and getattr(self.sizes, axis) > 1))

    def sums(self, tensors: list[Tensor], axes: Sequence[str]) -> list[Tensor]:
        """The sums of tensors over the devices along some axes, in one reduction."""
        group = self._group(axes)
        return add(tensors, group) if tensors and group else tensors

    def means(self, tensors: list[Tensor], axes: Sequence[str]) -> list[Tensor]:
        """The means of tensors over the devices along some axes, in one reduction."""
        return [total / self.sizes.size(axes) for total in self.sums(tensors, axes)]

    # Processes.

    @property
    def process(self) -> int:
        """The number of this process."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def processes(self) -> int:
        """The number of processes."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def exchanged(self, value: str) -> list[str]:
        """The texts of all processes, in their order; it waits for all."""
        texts = [value] * self.processes
        if self.processes > 1:
            dist.all_gather_object(texts, value)
        return texts

    # Arrays.

    def rows(self, batch: int) -> range:
        """The rows of a batch that this process puts on its device."""
        if batch % self.sizes.devices:
            raise ShapeError(
                f"a batch of {batch} images does not divide among {self.sizes.devices} devices ({self.sizes})"
            )
        share = batch // self.sizes.devices
        return range(self.process * share, (self.process + 1) * share)

    def put(self, batch: Any) -> Any:
        """The rows of this process, NumPy arrays in nested dicts, as tensors on its device."""
        return from_numpy(batch)

    def _index(self, shape: Sequence[int], split: Split) -> tuple[slice, ...]:
        """Where the part of this process is in an array of a shape."""
        index = []
        for length, axis in zip(shape, split, strict=True):
            size = length // getattr(self.sizes, axis) if axis else length
            start = self.place[axis] * size if axis else 0
            index.append(slice(start, start + size))
        return tuple(index)

    # Training.

    def init_state(self, params: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
        """The state before the first step. Each leaf of `params` has a shape, and slices of it are read, as of a NumPy array."""
        return self.import_state({"params": params, "step": 0}, optimizer)

    def import_state(self, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
        """The state that `export_state`, of any backend, made `exported` of. Of each leaf a process reads what it needs."""
        trees = {name: dict(leaves(tree)) for name, tree in exported.items() if name != "step"}
        given, step = trees["params"], int(exported["step"])
        extents = {
            path: _Extent(self, leaf.shape, split_axes(path, leaf.shape, self.sizes)) for path, leaf in given.items()
        }

        def read(source: Any, slot: str, path: Path) -> Tensor:
            split = axes_of_slot(slot, extents[path].shape, extents[path].split, optimizer.factored_from)
            part: Tensor = from_numpy(np.asarray(source[self._index(source.shape, split)], given[path].dtype))
            return part

        params = {path: read(leaf, "params", path) for path, leaf in given.items()}
        trained = {path: leaf.requires_grad_() for path, leaf in params.items() if optimizer.rate_of(path)}
        made = optimizers.make(optimizer, trained, extents)
        average: Leaves = {}
        for path, leaf in trained.items():
            kept = {}
            for slot, shape in optimizer.slots(path, extents[path].shape).items():
                before = given[path] if slot == "ema" else np.broadcast_to(np.float32(0), shape)
                kept[slot] = read(trees.get(slot, {}).get(path, before), slot, path)
            if "ema" in kept:
                average[path] = kept.pop("ema")
            optimizers.keep(optimizer, made, leaf, kept, step)
        return _State(unflatten(params), made, optimizer, average, step, extents)

    def export_state(self, state: _State) -> dict[str, Any]:
        """As of one device, with `Pieces` in place of arrays: those that this process is to save."""
        trees: dict[str, Any] = {
            slot: unflatten({path: self._pieces(leaf, slot, state, path) for path, leaf in found.items()})
            for slot, found in kept_leaves(state).items()
        }
        return {**trees, "step": state.step}

    def _pieces(self, leaf: Tensor, slot: str, state: _State, path: Path) -> Pieces:
        """The part of an array that this process has, if no process before it has the same."""
        extent = state.extents[path]
        split = axes_of_slot(slot, extent.shape, extent.split, state.config.factored_from)
        sizes = [getattr(self.sizes, axis) if axis else 1 for axis in split]
        shape = tuple(length * size for length, size in zip(leaf.shape, sizes, strict=True))
        first = not any(self.place[axis] for axis in AXES if axis not in split)
        pieces = ((start_of(self._index(shape, split)), to_numpy(leaf)),) if first else ()
        return Pieces(shape, to_numpy(leaf.new_empty(0)).dtype, pieces)

    def state_params(self, state: _State) -> Params:
        """As of one device, of what this process has."""
        return state.marked({path: leaf.detach() for path, leaf in flatten(state.params).items()})

    def state_average(self, state: _State) -> Params:
        """As of one device, of what this process has."""
        return state.marked({path: leaf.detach() for path, leaf in flatten(state.params).items()} | state.average)

    def make_step(
        self, loss_function: LossFunction, optimizer: OptimizerConfig, *, accumulate: int = 1, compiled: bool = True
    ) -> Callable[[_State, Any, float], tuple[_State, Metrics]]:
        """As of one device, for the rows of this process. The loss is a mean over groups and images, as all metrics are.

        The gradients of what all devices have are summed together, in one reduction with loss and metrics.
        """
        check_at_least("accumulate", accumulate, 1)
        evaluate = self.compile(loss_function) if compiled else self._gathering(loss_function)

        def step(state: _State, batch: Any, learning_rate: float) -> tuple[_State, Metrics]:
            share = 1 / self.sizes.devices
            metrics = set_gradients(evaluate, state.marked({}), state.trained(), batch, accumulate, share=share)
            metrics = self._add_gradients(state, metrics)
            metrics["grad_norm"] = self._norm(state)
            update(state, metrics["grad_norm"], learning_rate)
            return state, metrics

        return step

    def _add_gradients(self, state: _State, metrics: Metrics) -> Metrics:
        """Sums each gradient over the devices that have the same part of the parameter. Returns the means of metrics."""
        # A gradient through a gather or an all-to-all is a sum already over the devices along its axis.
        together: dict[tuple[str, ...], list[Tensor]] = {AXES: []}
        for path, leaf in state.trained().items():
            axes = tuple(axis for axis in AXES if axis not in state.extents[path].split)
            together.setdefault(axes, []).append(leaf)
        totals: list[Tensor] = []
        for axes, same in together.items():
            gradients = [leaf.grad for leaf in same if leaf.grad is not None]
            sums = self.sums([*gradients, *(metrics.values() if axes == AXES else ())], axes)
            for leaf, total in zip(same, sums, strict=False):
                leaf.grad = total
            totals = sums[len(same) :] or totals
        return {name: total / self.sizes.devices for name, total in zip(metrics, totals, strict=True)}

    def _norm(self, state: _State) -> Tensor:
        """The norm of the whole gradient: the squares of parts are summed over the devices that have others."""
        together: dict[tuple[str, ...], list[Tensor | None]] = {}
        for path, leaf in state.trained().items():
            axes = tuple(axis for axis in SPLITTING if axis in state.extents[path].split)
            together.setdefault(axes, []).append(leaf.grad)
        squares = {axes: norm_of(gradients).square() for axes, gradients in together.items()}
        copies = {axes: self.sizes.size([axis for axis in SPLITTING if axis not in axes]) for axes in squares}
        own = sum(square / copies[axes] for axes, square in squares.items())
        return self.sums([own], SPLITTING)[0].sqrt()

    def compile(self, function: Callable[..., Any], *, compiler: str = "inductor") -> Callable[..., Any]:
        """`function(params, rows)`, compiled, for parameters of a state, and the rows of this process.

        What it returns is the same on all devices, as `over_devices` makes it.
        """
        compiled: Callable[..., Any] = single.compile(self._gathering(function), compiler=compiler)
        return compiled

    def quick_compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`compile` without the wait for code."""
        return self.compile(function, compiler="aot_eager")

    def _gathering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` of parameters that are whole but for those of blocks, which are gathered one block at a time."""

        def run(params: Params, rows: Any) -> Any:
            outside = {name: tree if name == "blocks" else self.whole(tree) for name, tree in params.items()}
            return function(outside, rows)

        return run


def _groups(sizes: MeshSizes) -> tuple[dict[tuple[str, ...], Group], dict[str, int]]:
    """The groups of this process along each set of axes that have several devices, and its place along each axis."""
    if sizes.devices == 1:
        return {}, dict.fromkeys(AXES, 0)
    mesh = init_device_mesh(default_device().type, sizes.shape, mesh_dim_names=AXES)
    wide = [axis for axis in AXES if getattr(sizes, axis) > 1]
    groups = {}
    for axes in (axes for count in range(1, len(wide) + 1) for axes in itertools.combinations(wide, count)):
        group = (mesh[axes] if len(axes) == 1 else mesh[axes]._flatten()).get_group()
        groups[axes] = Group(group.group_name, group.size())
    return groups, {axis: mesh.get_local_rank(axis) for axis in AXES}
