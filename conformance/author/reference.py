"""Runs stages on the specification, one group at a time, to compute reference results.

A model runs on the batched NumPy backend, which exposes the specification under the names that models use.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec import spec
from moespec.conformance import call
from moespec.conformance.author.trace import Recorder
from moespec.conformance.format import Stage, Tensor, finish
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS, Output
from moespec.spec.numerics import softmax

__all__ = ["SPEC", "Arrays", "Making"]

Arrays = dict[str, NDArray[Any]]

SPEC = SimpleNamespace(
    **{name: getattr(spec, name) for name in spec.__all__ if name != "mean"},
    broadcast_to=np.broadcast_to,
    einsum=np.einsum,
    concatenate=np.concatenate,
    transpose=np.transpose,
    mean=np.mean,
    sum=np.sum,
    tanh=np.tanh,
    softmax=softmax,
)
"""The specification plus NumPy's array operations. `np.einsum` does not reorder sums."""


@dataclass
class Making:
    """A case under construction.

    tensors: all inputs and computed results, by reference. stages: the completed stages, by name.
    trace: the calls that a router made. routing: the call that returned the router's routing.
    sampled: whether a few probes estimate each scale, for cases too large to differentiate. bound: functions that run the stages, by name.
    """

    inputs: Mapping[str, Tensor]
    stages: dict[str, Stage] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    decisions: dict[str, Any] = field(default_factory=dict)
    trace: tuple[Stage, ...] = ()
    routing: str = ""
    sampled: bool = False
    bound: dict[str, Callable[[Arrays], Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.tensors = {**self.inputs, **self.tensors}

    def add(self, stage: Stage) -> None:
        """Add a stage with its results."""
        self.stages[stage.name] = stage
        for name, value in stage.outputs.items():
            self.tensors[f"{stage.name}/{name}"] = Tensor(value.array, value.axes)
        if len(stage.outputs) == 1:
            self.tensors[stage.name] = self.tensors[f"{stage.name}/{name}"]

    def known(self, stage: Stage) -> dict[str, Stage]:
        """Return, by name, the stages that `stage` may refer to, and `stage` itself."""
        return {**self.stages, stage.name: stage}

    def groups(self, stage: Stage) -> list[Arrays]:
        """Return the arrays that a stage reads, as a list with one dict per group, or with one dict for a stage without groups."""
        read = {name: self.tensors[name] for name in call.reads(stage, self.known(stage), self.tensors)}
        arrays = {name: _wide(tensor.array) for name, tensor in read.items()}
        batched = self.batched(stage)
        if not batched:
            return [arrays]
        return [{**arrays, **{n: arrays[n][g, ...] for n in batched}} for g in range(len(arrays[batched[0]]))]

    def batched(self, stage: Stage) -> list[str]:
        """Return the names of the arrays that a stage reads and that have a groups axis."""
        if function(stage.call).batched:
            return []
        read = call.reads(stage, self.known(stage), self.tensors)
        return [name for name in read if self.tensors[name].axes[:1] in {(axis,) for axis in GROUPS}]

    def given(self, stage: Stage, values: Arrays) -> dict[str, Any]:
        """Return the arguments and options that a stage passes to its function, for one group."""
        return call.given(backend(stage), stage, self.known(stage), self.tensors)(values)

    def run(self, stage: Stage, values: Arrays, recorder: Recorder | None = None) -> Arrays:
        """Return a stage's results for one group, or for all groups if the stage runs a model. `recorder` records a router's calls."""
        if recorder is None and stage.router and self._summed():
            recorder = Recorder(spec, values)
        if recorder is not None:
            recorder.change = self._of_all_groups(recorder.change)
            name = self.router_of(stage)
            module = SimpleNamespace(**{**vars(SPEC), "ROUTERS": {name: recorder.router(name)}})
            found = call.result(module, stage, self.known(stage), self.tensors)(values)
        else:
            if stage.name not in self.bound:
                self.bound[stage.name] = call.result(backend(stage), stage, self.known(stage), self.tensors)
            found = self.bound[stage.name](values)
        return finish(call.arrays(found, self.wanted(stage)))

    def router_of(self, stage: Stage) -> str:
        """Return the name of the router that a stage calls or whose routing the stage reads, or "" if there is none."""
        routing = stage.arguments.get("routing")
        taken = self.stages.get(routing.partition("/")[0]) if isinstance(routing, str) else None
        return stage.router or (taken.router if taken else "")

    def _summed(self) -> set[str]:
        """Return the names of the router calls whose results are summed over groups before later calls read them."""
        read = {
            reference for stage in self.trace for reference in stage.arguments.values() if isinstance(reference, str)
        }
        return {
            stage.name
            for stage in self.trace
            if stage.name in read and any(output.summed for output in function(stage.call).outputs.values())
        }

    def _of_all_groups(self, change: Callable[[Stage, Any], Any]) -> Callable[[Stage, Any], Any]:
        """Wrap `change` so that each group receives the sums over all groups."""
        summed = self._summed()

        def changed(stage: Stage, result: Any) -> Any:
            result = change(stage, result)
            return _wide(self.tensors[stage.name].array) if stage.name in summed else result

        return changed

    def wanted(self, stage: Stage) -> Collection[str]:
        """Return the names of a stage's results. For a router, return the names of the routing's arrays."""
        return function(self.stages[self.routing].call if stage.router else stage.call).outputs

    def output(self, stage: Stage, name: str) -> Output:
        """Return the description of a result."""
        return function(stage.call).output(name)

    def join(self, stage: Stage, groups: list[Arrays]) -> Arrays:
        """Combine the results of all groups. Stack results with a groups axis. Average or sum other results.

        A result that lacks both a groups axis and a tokens axis is equal for all groups and tokens.
        """
        joined = {}
        for name, first in groups[0].items():
            output = self.output(stage, name)
            axes = output.axes.split()
            missing = len(axes) - first.ndim
            stacked = np.stack([group[name] for group in groups])
            if output.summed:
                joined[name] = stacked.sum(axis=0)
            elif missing == 1 and axes[0] in GROUPS and not function(stage.call).batched:
                joined[name] = stacked
            elif missing > 1 or len(groups) == 1:  # the result does not depend on the tokens
                joined[name] = first
            else:
                joined[name] = stacked.mean(axis=0)
        return joined


def backend(stage: Stage) -> Any:
    """Return the backend that a stage runs on."""
    return importlib.import_module("moespec.backends.numpy") if function(stage.call).batched else SPEC


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
