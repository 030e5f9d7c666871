"""What each process of a mesh runs of a case, and what it returns of it.

Parameters are split over the devices as in training, those of any size. What is used of a target's `OnMesh` is what
training uses; and `mapped`, which is `compile` without the compiler, if there is one.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moespec.backends.mesh import Pieces
from moespec.backends.optimizer import OptimizerConfig
from moespec.conformance.engine.copies import repeated, weight
from moespec.conformance.engine.format import Tensor, finish
from moespec.conformance.engine.gradients import Gradient
from moespec.conformance.engine.target import Job, Target, contained

__all__ = ["GRADIENT", "Share", "shares"]

GRADIENT = "gradient"
"""What stands for the gradient of a case, among the names of its stages."""

Arrays = dict[str, NDArray[Any]]
MOMENTUM = OptimizerConfig("sgd", momentum=0.5)
"""After its first step the momentum is the gradient."""


@dataclass
class Share:
    """What one process has of the results of a stage, or of a gradient.

    devices: the results of each device by name, the same in all processes; of one for what is the same on all devices. parts:
    results of which the process has some entries, and 0 in place of the others. error: the exception, if there was one.
    """

    devices: list[Arrays] = field(default_factory=list)
    parts: Arrays = field(default_factory=dict)
    error: str = ""


def shares(target: Target, jobs: Mapping[tuple[str, str], Job]) -> dict[tuple[str, str], Share]:
    """Those of this process, for jobs by the id of the case, and the name of the stage or `GRADIENT`.

    target: whose module is an `OnMesh`. Layers are one program together, or one each where that raises; models have
    their own.
    """
    found: dict[tuple[str, str], Share] = {}
    for wanted in (_results, _gradients):
        mine = {key: job for key, job in jobs.items() if (key[1] == GRADIENT) == (wanted is _gradients)}
        layers = {key: job for key, job in mine.items() if not _is_model(job)}
        if len(layers) > 1:
            with suppress(Exception), contained():
                found |= dict(zip(layers, wanted(target, list(layers.values())), strict=True))
        for key, job in mine.items():
            if key not in found:
                found[key] = _alone(target, job, _trained if job.stage.call == "vit_train" else wanted)
    return found


def _alone(target: Target, job: Job, wanted: Callable[[Target, list[Job]], list[Share]]) -> Share:
    try:
        with contained():
            (share,) = wanted(target, [job])
            return share
    except Exception as error:
        return Share(error=f"{type(error).__name__}: {error}")


def _is_model(job: Job) -> bool:
    return "model" in job.stage.options


class Program:
    """Several jobs as one function of parameters and rows, as a mesh has them.

    A model is a job alone, whose parameters are not below another name: its blocks gather their own.
    """

    def __init__(self, target: Target, jobs: Sequence[Job], probes: Sequence[Mapping[str, Tensor]] = ()) -> None:
        """probes: what else is given to the function of a job."""
        self.target, self.B, self.jobs = target, target.module, jobs
        self.repeated = [
            repeated(target, job, more) for job, more in zip(jobs, probes or [{}] * len(jobs), strict=True)
        ]
        devices, trees = self.B.sizes.devices, {str(i): each.params for i, each in enumerate(self.repeated)}
        mine = self.B.rows(devices)
        self.rows = self.B.put({str(i): each.rows(mine, devices) for i, each in enumerate(self.repeated)})
        self.constants = [self.B.from_numpy(each.constants) for each in self.repeated]
        self.params = trees["0"] if len(jobs) == 1 else {i: tree for i, tree in trees.items() if tree}

    def below(self, params: Any, i: int) -> Any:
        """The parameters of a job."""
        return params if len(self.jobs) == 1 else params.get(str(i), {})

    def values(self, params: Any, rows: Any) -> Iterator[dict[str, Any]]:
        """The arrays of each job by name, in a program."""
        for i, (job, each) in enumerate(zip(self.jobs, self.repeated, strict=True)):
            arrays = {**self.constants[i], **each.named(self.below(params, i)), **rows[str(i)]}
            del arrays["weight"]
            yield {name: self._narrow(job, name, array) for name, array in arrays.items()}

    def _narrow(self, job: Job, name: str, array: Any) -> Any:
        """An input in bfloat16, if that is the dtype of the run: parameters and rows are kept in float32."""
        inputs = job.case.inputs
        narrow = self.target.dtype.name == "bfloat16" and not self.target.mixes(job.stage)
        return (
            self.B.cast(array, "bfloat16")
            if narrow and name in inputs and inputs[name].array.dtype.kind == "f"
            else array
        )

    def state(self) -> Any:
        """Before the first step."""
        return self.B.init_state(self.params, MOMENTUM)

    def by_device(self, function: Callable[[Any, Any], Iterable[Arrays]]) -> list[list[Arrays]]:
        """What `function(params, rows)` returns for each job, by name, on each device."""
        B = self.B

        def run(params: Any, rows: Any) -> Any:
            return [{n: B.over_devices(x[None], {})[0] for n, x in each.items()} for each in function(params, rows)]

        params = B.state_params(self.state()) if self.params else {}
        results = B.to_numpy(getattr(B, "mapped", B.compile)(run)(params, self.rows))
        for each in results:
            self.target.check_dtypes(each)
        return [[{n: x[d] for n, x in each.items()} for d in range(B.sizes.devices)] for each in results]


def _results(target: Target, jobs: list[Job]) -> list[Share]:
    program, functions = Program(target, jobs), [job.bind(target) for job in jobs]

    def run(params: Any, rows: Any) -> Iterator[Arrays]:
        return (function(values) for function, values in zip(functions, program.values(params, rows), strict=True))

    found = program.by_device(run)
    return [Share([finish(each) for each in devices]) for devices in found]


def _gradients(target: Target, jobs: list[Job]) -> list[Share]:
    """Of parameters as training has them, summed over devices and split; of rows on each device."""
    gradients, B = [Gradient(job) for job in jobs], target.module
    losses = [gradient.bind(target) for gradient in gradients]
    program = Program(target, jobs, [{"probe": gradient.wanted.probe} for gradient in gradients])

    def loss(params: Any, rows: Any) -> tuple[Any, dict[str, Any]]:
        each = zip(losses, program.values(params, rows), sorted(rows, key=int), strict=True)
        return sum(function({}, values) * rows[i]["weight"][0] for function, values, i in each), {}

    parts: list[Arrays] = [{} for _ in jobs]
    if program.params:
        state, _ = make_step(B, loss, MOMENTUM)(program.state(), program.rows, 0.0)
        momentum = exported(B, state)["trace"]
        parts = [each.named(program.below(momentum, i)) for i, each in enumerate(program.repeated)]
    by = [
        [name for name in each.grouped if name in g.wanted.wrt]
        for each, g in zip(program.repeated, gradients, strict=True)
    ]

    def slopes(params: Any, rows: Any) -> Iterator[Arrays]:
        moved = {str(i): {name: rows[str(i)][name] for name in names} for i, names in enumerate(by)}

        def of_rows(moved: Any) -> Any:
            return loss(params, {i: {**each, **moved[i]} for i, each in rows.items()})

        _, found = B.value_and_grad(of_rows)(moved)
        return ({name: x / rows[i]["weight"][0] for name, x in found[i].items()} for i in rows)

    found = program.by_device(slopes) if any(by) else [[] for _ in jobs]
    wanted = [gradient.wanted.wrt for gradient in gradients]
    return [
        Share(devices, {name: part for name, part in mine.items() if name in names})
        for devices, mine, names in zip(found, parts, wanted, strict=True)
    ]


def _trained(target: Target, jobs: list[Job]) -> list[Share]:
    """Steps whose batch each device has. Metrics are means over the devices."""
    (job,) = jobs
    training = Target(target.name, target.dtype, cast(ModuleType, Training(target.module)))
    results = finish(job.bind(training)(training.module.to_numpy(job.arrays(training))))
    parts = {name: x for name, x in results.items() if name.startswith("parameters/")}
    return [Share([{name: x for name, x in results.items() if name not in parts}], parts)]


class Training:
    """An `OnMesh` whose steps take the batch of one device, as NumPy arrays."""

    def __init__(self, B: Any) -> None:
        self.B = B

    def __getattr__(self, name: str) -> Any:
        return getattr(self.B, name)

    def make_step(self, loss_function: Any, optimizer: Any, *, accumulate: int = 1) -> Any:
        """As of one device."""
        B, devices = self.B, self.B.sizes.devices

        def weighted(params: Any, batch: Any) -> Any:
            loss, metrics = loss_function(params, batch["rows"])
            return loss * batch["weight"][0], metrics

        step = make_step(B, weighted, optimizer, accumulate=accumulate)

        def step_of_copies(state: Any, batch: Arrays, rate: float) -> Any:
            mine, wide = B.rows(devices), np.result_type(*batch.values())
            rows = {name: np.concatenate([array] * len(mine)) for name, array in batch.items()}
            count = len(next(iter(batch.values())))
            weights = np.repeat(np.array([weight(device, devices) for device in mine], wide), count)
            return step(state, B.put({"rows": rows, "weight": weights}), rate)

        return step_of_copies

    def export_state(self, state: Any) -> dict[str, Any]:
        """What this process has of each array."""
        return exported(self.B, state)


def make_step(B: Any, loss_function: Any, optimizer: OptimizerConfig, **options: Any) -> Any:
    """A step of the mesh, op by op if it can be had."""
    as_called = {"compiled": False} if "compiled" in inspect.signature(B.make_step).parameters else {}
    return B.make_step(loss_function, optimizer, **options, **as_called)


def exported(B: Any, state: Any) -> dict[str, Any]:
    """A state as nested dicts of arrays that have the entries of this process, and 0 for all others."""
    trees = {name: tree for name, tree in B.export_state(state).items() if name != "step"}
    return {name: _mapped(_filled, tree) for name, tree in trees.items()}


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    return {n: _mapped(function, x) for n, x in tree.items()} if isinstance(tree, dict) else function(tree)


def _filled(pieces: Pieces) -> NDArray[Any]:
    array = np.zeros(pieces.shape, pieces.dtype)
    for start, piece in pieces.pieces:
        array[tuple(slice(begin, begin + size) for begin, size in zip(start, piece.shape, strict=True))] += piece
    return array
