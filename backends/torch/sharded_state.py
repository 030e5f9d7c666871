"""Training states sharded over the devices of a mesh: each process holds its parts of the parameters and of the
optimiser's arrays as plain tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from moespec.backends.mesh import AXES, Shards, Split, axes_of_slot, split_axes, start_of
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.pytrees import Path, flatten, leaves, unflatten
from moespec.backends.torch import optimizers
from moespec.backends.torch.arrays import from_numpy, to_numpy
from moespec.backends.torch.collectives import Devices
from moespec.backends.torch.training import Leaves, Params, Results, TrainState, kept_leaves, norm_of

SPLITTING = ("fsdp", "expert")
"""The mesh axes over which parameters are split."""


class Part(NamedTuple):
    """An argument of a program: one device's part of a parameter that is split along `axis` over the mesh axis `fsdp`."""

    array: Tensor
    axis: int


class Extent(optimizers.Extent):
    """A parameter of shape `shape`, split over devices according to `split`."""

    def __init__(self, devices: Devices, shape: Sequence[int], split: Split) -> None:
        super().__init__(shape)
        self.devices, self.split = devices, split

    def norms(self, *tensors: Tensor) -> Sequence[Tensor]:
        norms, axes = super().norms(*tensors), [axis for axis in self.split if axis]
        return [x.sqrt() for x in self.devices.sums([norm.square() for norm in norms], axes)] if axes else norms

    def mean(self, x: Tensor, axis: int) -> Tensor:
        mean, over = super().mean(x, axis), self.split[axis]
        return self.devices.means({"mean": mean}, [over])["mean"] if over else mean


@dataclass
class SpreadState(TrainState):
    """The training state of one process: the process's parts of the parameters, and the `Extent` of each complete parameter."""

    extents: dict[Path, Extent]
    devices: Devices

    def shape_of(self, path: Path, leaf: Tensor) -> tuple[int, ...]:
        return self.extents[path].shape

    def marked(self, given: Leaves) -> Params:
        """Returns the parameters as arguments of a program. Leaves in `given` replace the parameters at the same paths."""
        split = {path: extent.split for path, extent in self.extents.items()}
        return unflatten(
            {
                path: Part(leaf, split[path].index("fsdp")) if "fsdp" in split[path] else leaf
                for path, leaf in {**flatten(self.params), **given}.items()
            }
        )

    def add_gradients(self, metrics: dict[str, Tensor], sums: list[Any]) -> Results:
        """Sums each gradient over the devices that hold the same part of the parameter. Returns the mean of each metric and
        the total of each sum over all devices.

        Gradients that are summed over the same axes share one reduction. The reduction over all devices includes the metrics and sums.
        """
        trees = [flatten(tree) for tree in sums]
        shared = [*metrics.values(), *(leaf for tree in trees for leaf in tree.values())]
        # The backward pass of a gather or an all-to-all has already summed the gradient over the devices that exchanged parts.
        together: dict[tuple[str, ...], list[Tensor]] = {AXES: []}
        for path, leaf in self.trained().items():
            axes = tuple(axis for axis in AXES if axis not in self.extents[path].split)
            together.setdefault(axes, []).append(leaf)
        totals: list[Tensor] = []
        for axes, same in together.items():
            gradients = [leaf.grad for leaf in same if leaf.grad is not None]
            summed = self.devices.sums([*gradients, *(shared if axes == AXES else ())], axes)
            for leaf, total in zip(same, summed, strict=False):
                leaf.grad = total
            totals += summed[len(same) :]
        means = {name: total / self.devices.sizes.devices for name, total in zip(metrics, totals, strict=False)}
        rest = iter(totals[len(metrics) :])
        return means, [unflatten({path: next(rest) for path in tree}) for tree in trees]

    def norm(self) -> Tensor:
        """Returns the norm of the complete gradient. Sums the squared norms of the gradient's parts over the devices."""
        together: dict[tuple[str, ...], list[Tensor | None]] = {}
        for path, leaf in self.trained().items():
            axes = tuple(axis for axis in SPLITTING if axis in self.extents[path].split)
            together.setdefault(axes, []).append(leaf.grad)
        total: Any = 0
        for axes, gradients in together.items():
            copies = self.devices.sizes.size([axis for axis in SPLITTING if axis not in axes])
            total = total + norm_of(gradients).square() / copies
        return self.devices.sums([total], SPLITTING)[0].sqrt()


def read_state(devices: Devices, exported: Mapping[str, Any], optimizer: OptimizerConfig) -> SpreadState:
    """Restores a state that `export_state` of any backend exported. Missing slots get their initial values.

    Each leaf must have a shape and a dtype, and support slicing like a NumPy array. This process reads only its part of a leaf.
    """
    trees = {name: dict(leaves(tree)) for name, tree in exported.items() if name != "step"}
    entries, step = trees["params"], int(exported["step"])
    extents = {
        path: Extent(devices, leaf.shape, split_axes(path, leaf.shape, devices.sizes)) for path, leaf in entries.items()
    }

    def read(source: Any, slot: str, path: Path) -> Tensor:
        split = axes_of_slot(slot, extents[path].shape, extents[path].split, optimizer.factored_from)
        part: Tensor = from_numpy(np.asarray(source[devices.index(source.shape, split)], entries[path].dtype))
        return part

    params = {path: read(leaf, "params", path) for path, leaf in entries.items()}
    trained = {path: leaf.requires_grad_() for path, leaf in params.items() if optimizer.rate_of(path)}
    torch_optimizer = optimizers.make(optimizer, trained, extents)
    average: Leaves = {}
    for path, leaf in trained.items():
        moments = {}
        for slot, shape in optimizer.slots(path, extents[path].shape).items():
            first = entries[path] if slot == "ema" else np.broadcast_to(np.float32(0), shape)
            moments[slot] = read(trees.get(slot, {}).get(path, first), slot, path)
        if "ema" in moments:
            average[path] = moments.pop("ema")
        optimizers.keep(optimizer, torch_optimizer, leaf, moments, step)
    return SpreadState(unflatten(params), torch_optimizer, optimizer, average, step, extents, devices)


def pieces_of(state: SpreadState) -> dict[str, Any]:
    """A state as nested dicts of `Shards`, and its step. If several processes have the same part, only the first one includes this part."""
    devices = state.devices

    def pieces(leaf: Tensor, slot: str, path: Path) -> Shards:
        extent = state.extents[path]
        split = axes_of_slot(slot, extent.shape, extent.split, state.config.factored_from)
        parts = [getattr(devices.sizes, axis) if axis else 1 for axis in split]
        shape = tuple(length * count for length, count in zip(leaf.shape, parts, strict=True))
        first = not any(devices.place[axis] for axis in AXES if axis not in split)
        found = ((start_of(devices.index(shape, split)), to_numpy(leaf)),) if first else ()
        return Shards(shape, to_numpy(leaf.new_empty(0)).dtype, found)

    trees: dict[str, Any] = {
        slot: unflatten({path: pieces(leaf, slot, path) for path, leaf in found.items()})
        for slot, found in kept_leaves(state).items()
    }
    return {**trees, "step": state.step}
