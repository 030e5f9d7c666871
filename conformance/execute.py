"""Run the stages, gradients and negatives of cases on a target, op by op or compiled.

Compilers are slow and the cases many and small, so in the compiled mode all stages of one algorithm in one lane are
compiled as ONE function, from the list of their values to the list of their results. When that raises, each is compiled
alone, so that the exception has the right address. Where a target can trace without generating code (`quick_compile`),
code is generated only for the cases with the flag `generated_code`, in the f32 lane: at least one for each router and
the layer, and their gradients.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.format import Case, Gradients, Tensor
from moespec.conformance.program import Stage, Values, select
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.target import Target

__all__ = ["Gradient", "Job", "MalformedError", "execute", "golden_values", "gradients", "job_of"]


class MalformedError(Exception):
    """What a target returned is no result: a dispatch that is no dispatch, something that is not an array."""


@dataclass(frozen=True)
class Job:
    """One stage of one case, with the values it reads."""

    case: Case
    stage: Stage
    values: dict[str, Tensor]

    def bind(self, target: Target, mode: str = "eager") -> Callable[[Values], Values]:
        """The stage as a function of its values, with everything static closed over."""
        module, run = target.module, target.implementation(self.stage, self.case)
        config = self.stage.prepare(target.config_of(self.stage, self.case.config))
        if mode == "compiled" and not self.stage.traced:
            config = {**config, "compile": partial(target.compile, code=generates(target, self.case))}
        return lambda values: run(module, config, values)

    def arrays(self, target: Target) -> Values:
        """The values as arrays of the target: inputs in the lane's dtype, earlier results in float32 or better."""
        results = {name: value for name, value in self.values.items() if name not in self.case.inputs}
        inputs = {name: value for name, value in self.values.items() if name in self.case.inputs}
        return {**target.arrays(inputs, target.dtype_of(self.stage)), **target.arrays(results, target.wide)}


def golden_values(case: Case) -> dict[str, Tensor]:
    """Inputs and all expected results of a case by name; the first stage that has a name gives its value."""
    values = dict(case.inputs)
    for stage in case.stages:
        for name, value in stage.outputs.items():
            values.setdefault(name, Tensor(value.array, value.axes))
    return values


def job_of(case: Case, name: str) -> Job:
    """The job of a stage by name."""
    stage = PROGRAMS[case.algorithm][name]
    return Job(case, stage, select(golden_values(case), stage.reads))


def execute(target: Target, jobs: Sequence[Job], mode: str) -> list[Values | Exception]:
    """The finished results of each job, or the exception it raised."""
    found: dict[int, Values | Exception] = {}
    for code in (True, False):
        together = [
            job for job in jobs if mode == "compiled" and job.stage.traced and generates(target, job.case) == code
        ]
        if len(together) > 1:
            with suppress(Exception):
                found |= zip(map(id, together), _compiled(target, together, code), strict=True)
    return [found[id(job)] if id(job) in found else _alone(target, job, mode) for job in jobs]


def generates(target: Target, case: Case) -> bool:
    """Whether code is generated for a case, and not only a graph."""
    return target.lane.name == "f32" and "generated_code" in case.flags


def _compiled(target: Target, jobs: Sequence[Job], code: bool) -> list[Values | Exception]:
    functions = [job.bind(target) for job in jobs]

    def together(values: list[Values]) -> list[Values]:
        return [function(own) for function, own in zip(functions, values, strict=True)]

    results = target.compile(together, code=code)([job.arrays(target) for job in jobs])
    return [_finished(target, result) for result in results]


def _alone(target: Target, job: Job, mode: str) -> Values | Exception:
    try:
        function = job.bind(target, mode)
        if mode == "compiled" and job.stage.traced:
            function = target.compile(function, code=generates(target, job.case))
        return _finished(target, function(job.arrays(target)))
    except Exception as error:
        return error


def _finished(target: Target, results: Any) -> Values | Exception:
    try:
        return target.finished(results)
    except Exception as error:
        return MalformedError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Gradient:
    """The gradient that a case asks for, as a function of the inputs it is taken by."""

    job: Job

    @property
    def wanted(self) -> Gradients:
        """What the case expects."""
        return self.job.case.expected_gradients

    def params(self, target: Target) -> Values:
        """The inputs that the gradient is taken by."""
        return {name: array for name, array in self.job.arrays(target).items() if name in self.wanted.wrt}

    def rest(self, target: Target) -> Values:
        """Everything else, and the probe."""
        others = {name: a for name, a in self.job.arrays(target).items() if name not in self.wanted.wrt}
        probe = {"probe": self.wanted.probe}
        return {**others, **target.arrays(probe, target.wide)}

    def bind(self, target: Target) -> Callable[[Values, Values], Any]:
        """`sum(probe * output)` in float32 or better, as a function of `params` and `rest`."""
        function, name, B, wide = self.job.bind(target), self.wanted.output, target.module, target.wide

        def loss(params: Values, rest: Values) -> Any:
            values = {**rest, **params}
            probe = values.pop("probe")
            results = function(values)
            # Weights by slot, from the dense tensor: a slot has at most one token.
            output = B.sum(results["routing.combine"], 1) if name == "weights" else results[name]
            return B.sum(B.cast(output, wide) * probe)

        return loss


def gradients(target: Target, cases: Sequence[Case], mode: str) -> list[Values | Exception]:
    """The gradients of each case by name, or the exception. In the compiled mode all are one function."""
    wanted = [Gradient(job_of(case, case.expected_gradients.stage)) for case in cases]
    found: dict[str, Values | Exception] = {}
    for code in (True, False):
        together = [gradient for gradient in wanted if generates(target, gradient.job.case) == code]
        if mode == "compiled" and len(together) > 1:
            with suppress(Exception):
                found |= _differentiate(target, together, mode, code)
    for gradient in wanted:
        case = gradient.job.case
        if case.id not in found:
            try:
                found |= _differentiate(target, [gradient], mode, generates(target, case))
            except Exception as error:
                found[case.id] = error
    return [found[case.id] for case in cases]


def _differentiate(target: Target, wanted: Sequence[Gradient], mode: str, code: bool) -> dict[str, Values | Exception]:
    losses = [gradient.bind(target) for gradient in wanted]

    def total(params: dict[str, Values], rest: dict[str, Values]) -> tuple[Any, dict[str, Any]]:
        return sum(loss(params[str(i)], rest[str(i)]) for i, loss in enumerate(losses)), {}

    function: Callable[..., Any] = target.compile(total, code=code) if mode == "compiled" else total
    params = {str(i): gradient.params(target) for i, gradient in enumerate(wanted)}
    rest = {str(i): gradient.rest(target) for i, gradient in enumerate(wanted)}
    _, found = target.module.value_and_grad(function)(params, rest)
    on_numpy = target.module.to_numpy(found)
    return {
        gradient.job.case.id: {name: np.asarray(array) for name, array in on_numpy[str(i)].items()}
        for i, gradient in enumerate(wanted)
    }
