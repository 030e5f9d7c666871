"""A case on a mesh of devices: the batch of a case is too small to be split, so every device has all of it.

The batch of the mesh is n copies of it, and each device must compute what one device alone does. Devices that had the same
numbers could get each other's unnoticed, so they differ in what has no part in the results:

    groups     device d has them in another order, moved by d; its results are put back
    weights    the loss of device d is multiplied by (2 d + 1) / n, 1 on average: the mean over the devices stays the same,
               and so do gradients of it
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.mesh import MeshSizes, check_experts, check_whole_experts, leaves, split_axes
from moespec.conformance.engine import call
from moespec.conformance.engine.describe import GROUPS
from moespec.conformance.engine.format import Case, Stage, Tensor, Value
from moespec.conformance.engine.target import Job, Target
from moespec.spec.errors import ConfigError

__all__ = ["Repeated", "chosen", "put_back", "reason", "repeated", "runs", "weight"]

LAYERS = ("moe_layer", "moe_mlp", "multi_hash_mlp")
MODELS = ("vit_forward", "mixer_forward", "sparse_mlp_forward", "vit_train")
"""The calls that run on a mesh: all others are of one group, or of arrays without one, and know nothing of devices."""

Arrays = dict[str, NDArray[Any]]


def chosen(case: Case) -> bool:
    """Whether a stage of a case runs on a mesh."""
    return case.expect is None and any(runs(stage) for stage in case.stages)


def runs(stage: Stage) -> bool:
    """Whether a stage runs on a mesh."""
    return bool(stage.outputs) and stage.call in LAYERS + MODELS


def reason(job: Job, sizes: MeshSizes) -> str:
    """Why a stage cannot run on a mesh, or an empty string."""
    routers = job.stage.options.get("model", {}).get("router_options", {})
    try:
        if job.stage.call == "multi_hash_mlp" or routers.get("hashes", 1) > 1:
            check_whole_experts("MultiHash", sizes)
        for experts in _experts(job):
            check_experts(experts, sizes, "the case")
        for name, value in job.values.items():
            split_axes(_path(name), value.array.shape, sizes)
    except ConfigError as error:
        return str(error)
    return ""


def _experts(job: Job) -> Iterator[int]:
    """The numbers of experts of the routings that a stage reads."""
    for stage in call.earlier(job.stage, {each.name: each for each in job.case.stages}, job.values):
        for value in stage.outputs.values():
            if "experts" in value.axes and "capacity" in value.axes:
                yield value.array.shape[value.axes.index("experts")]


def _path(name: str) -> tuple[str, ...]:
    """Where the input of that name is among the parameters of a state."""
    return tuple(name.removeprefix("params/").split("/"))


def _tree(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by the names of inputs as nested dicts, as a state has them."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = _path(name)
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = array
    return tree


def weight(device: int, devices: int) -> float:
    """What the loss of a device is multiplied by."""
    return (2 * device + 1) / devices


@dataclass(frozen=True)
class Repeated:
    """The arrays of a job for all devices of a mesh.

    arrays: all, by name. grouped: the names of those that have groups, images or rows as their first axis, of which there
    are `parts` that know nothing of each other. Floats without this axis are parameters, and integers constants.
    """

    arrays: Arrays
    grouped: tuple[str, ...]
    parts: int

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, as nested dicts."""
        return _tree({name: self.arrays[name] for name in self._parameters()})

    @property
    def constants(self) -> Arrays:
        """Integers that all groups have in common."""
        return {n: a for n, a in self.arrays.items() if n not in (*self.grouped, *self._parameters())}

    def _parameters(self) -> list[str]:
        return [n for n, a in self.arrays.items() if n not in self.grouped and a.dtype.kind == "f"]

    def rows(self, devices: Sequence[int], count: int) -> Arrays:
        """What is grouped, of some of `count` devices one after the other, and the weights of their losses."""
        rows = {n: np.concatenate([moved(self.arrays[n], d, self.parts) for d in devices]) for n in self.grouped}
        wide = np.result_type(*(a.dtype for a in self.arrays.values() if a.dtype.kind == "f"))
        return rows | {"weight": np.array([weight(device, count) for device in devices], wide)}

    def named(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters, as nested dicts, by the names of inputs; those that are there."""
        by_path = dict(leaves(params))
        return {name: by_path[_path(name)] for name in self._parameters() if _path(name) in by_path}


def repeated(target: Target, job: Job, more: Mapping[str, Tensor]) -> Repeated:
    """The arrays of a job, and more in float32 or better, rounded as the target rounds."""
    arrays = target.module.to_numpy({**job.arrays(target), **target.arrays(more, target.wide)})
    grouped = tuple(n for n, value in {**job.values, **more}.items() if _is_grouped(value.axes))
    return Repeated(arrays, grouped, _parts(job))


def _parts(job: Job) -> int:
    """In how many parts the batch can be moved: all arrays and results that have groups are as many, or several times.

    Random numbers are those of images that follow the first one, which can be no other.
    """
    if "random" in job.values:
        return 1
    values: list[Tensor | Value] = [*job.values.values(), *job.stage.outputs.values()]
    return gcd(*(value.array.shape[0] for value in values if _is_grouped(value.axes)))


def put_back(job: Job, results: Mapping[str, Any], device: int) -> Arrays:
    """Results of a device, or gradients of what it has, in the order of the case."""
    gradients = job.case.gradients.wrt if job.case.gradients else {}
    axes = {name: value.axes for name, value in {**gradients, **job.stage.outputs}.items()}
    return {
        name: moved(array, -device, _parts(job)) if _is_grouped(axes.get(name, ())) else array
        for name, array in results.items()
    }


def _is_grouped(axes: Sequence[str]) -> bool:
    return bool(axes) and axes[0] in GROUPS


def moved(array: NDArray[Any], by: int, parts: int) -> NDArray[Any]:
    """An array of several parts, moved by some of them."""
    return np.roll(array, by * (len(array) // parts), axis=0)
