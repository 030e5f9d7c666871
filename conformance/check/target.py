"""Run stages of cases, op by op or compiled, on a target, which is any module with some of the public names.

docs/conformance.md documents a target's names and declarations. A target cannot decline a case at run time: any
exception counts as an error. A target receives copies of the arrays and must not modify them. A target runs in a separate
process (`process.py`), but known variants and reproductions run in the suite's process. Besides `compile`, a target may
offer `quick_compile` and `trace`, which are faster and less thorough.

Compilation is slow, and the suite has many small cases. In compiled mode, all stages of one algorithm and compiler in one dtype
are therefore compiled as ONE function from a list of inputs to a list of results. Stages that differ only in numbers share a
part of this function, and the suite calls the function repeatedly with different numbers. If the function raises an exception,
each stage is compiled separately to find the failing stage. Each case uses the cheapest compiler that serves its purpose:

    compile         in float32 the cases with the flag `generated_code`: at least one for each router and the layer, and
                    their gradients
    quick_compile   the first case of every other call, and the first gradient: graph construction
    trace           all other cases, and errors: a run on shapes alone (data-dependent branches fail), then op by op

`quick_compile` and `trace` receive functions from `value_and_grad`, as in training. If a target lacks `trace`, the suite
uses `quick_compile`. If the target lacks `quick_compile`, the suite uses `compile`.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from moespec.conformance import call
from moespec.conformance.check.declined import declines, problem
from moespec.conformance.compare import Dtype
from moespec.conformance.failure import MalformedError
from moespec.conformance.format import Case, Stage, Tensor, finish
from moespec.conformance.functions import function
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own

__all__ = [
    *("DEFAULT", "MODES", "STRIDED", "Facts", "Job", "Target", "Values", "check_unchanged", "claimed", "compilers"),
    *("execute", "job_of", "unseen"),
]

Values = dict[str, Any]
STRIDED = "strided"
"""The mode that runs some cases in one dtype, op by op, on arrays that are contiguous in no order of axes (torch targets only)."""
MODES = ("eager", "compiled", STRIDED)
DEFAULT = ("eager", STRIDED)
"""The default modes."""


class ChangedError(Exception):
    """Raised if the target modified an input array."""


def claimed(target: Any) -> str:
    """The version of the specification that a module or an object claims to follow, or ""."""
    return str(getattr(target, "__moespec_version__", ""))


_numbers = count(1)


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of the function, so that no compiler uses a cached version.

    Compilers cache a function by its code and generalise the compiled code when constants change. Cases have different
    constants, so the suite compiles a new copy each time.
    """
    f: Any = function
    code = f.__code__.replace(co_firstlineno=next(_numbers))
    return FunctionType(code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)


class Target:
    """A module in one dtype; see the module's docstring."""

    kind = "target"
    """The name of this kind of target in command-line options and in reports."""
    declines = False
    """Whether targets of this kind, like adapters, may decline a case by raising an exception."""
    strided = False
    """Whether the target receives transposed views with gaps, if its arrays can be strided."""

    def __init__(self, name: str, dtype: Dtype, module: ModuleType | None = None) -> None:
        self.name, self.dtype = name, dtype
        self.module: Any = module or importlib.import_module(name)

    def context(self) -> AbstractContextManager[Any]:
        """Returns the context manager that sets the target's dtype."""
        return self.module.with_dtype(self.dtype.name) if hasattr(self.module, "with_dtype") else nullcontext()

    def check(self) -> None:
        """Raises ConfigError if the target lacks a name that every target needs, or has an invalid declaration."""
        missing = [needed for needed in ("from_numpy", "to_numpy") if not hasattr(self.module, needed)]
        if missing:
            raise ConfigError(f"has no {' and no '.join(missing)}; see docs/conformance.md")
        declared = getattr(self.module, "not_offered", {})
        right = isinstance(declared, dict) and all(
            isinstance(word, str) and word for pair in declared.items() for word in pair
        )
        if not right:
            raise ConfigError(f"not_offered={declared!r}: expected a dict that maps case or option patterns to reasons")
        for wrong in filter(None, map(problem, declared)):
            raise ConfigError(f"not_offered: {wrong}")

    def facts(self) -> "Facts":
        """Returns the target's properties, which the suite collects before it runs cases in this dtype."""
        try:
            with self.context():
                array = self.module.from_numpy({"": np.zeros(1, np.float32)}, self.dtype.name)[""]
        except Exception as error:
            return Facts(unsupported=f"{type(error).__name__}: {error}")
        return Facts(
            checks_values=bool(getattr(self.module, "checks_values", False)),
            strides=hasattr(array, "is_contiguous"),
            without_gradients=self.without_gradients(),
            missing=call.missing(self.module),
            not_offered=dict(getattr(self.module, "not_offered", {})),
        )

    @property
    def wide(self) -> str:
        """The dtype of affinities and losses: float64 if the target runs in float64, else float32."""
        return "float64" if self.dtype.name == "float64" else "float32"

    @property
    def claims(self) -> str:
        """The version of the specification that the target claims to follow, or ""."""
        return claimed(self.module)

    @staticmethod
    def wanted(case: Case) -> Case:
        """Returns the part of a case that this kind of target must compute."""
        return case

    @staticmethod
    def lacks(job: "Job", facts: "Facts", dtype: Dtype) -> str:
        """Returns the reason why a target with these properties cannot run a job, or ""."""
        if reason := facts.declared(job.case):
            return reason
        if dtype.name == "float16" and function(job.stage.call).batched:
            return "whole models are not run in float16"
        needs = call.needs(job.stage, job.stages, job.values)
        missing = {**{path: path for path in needs if is_own(path)}, **facts.missing}  # no target has custom functions
        return next((f"{missing[path]} is missing" for path in needs if path in missing), "")

    def without_gradients(self) -> str:
        """Returns the reason why the target has no gradients, or ""."""
        needs = ("value_and_grad", "sum", "cast")
        return next((f"{name} is missing" for name in needs if not hasattr(self.module, name)), "")

    def result(self, job: "Job", compile: Any = None) -> Callable[[Values], Any]:
        """Returns a function that takes a stage's arrays and makes the stage's call.

        compile: compiles the inner functions of a stage that is not traced.
        """
        more = {} if compile is None or not function(job.stage.call).compiles else {"compile": compile}
        more |= {"dtype": "bfloat16"} if self.mixes(job.stage) else {}
        return call.result(self.module, job.stage, job.stages, job.values, more)

    def compile(self, function: Callable[..., Any], compiler: str) -> Callable[..., Any]:
        """Compiles a function with the target's attribute named `compiler`."""
        compiled: Callable[..., Any] = getattr(self.module, compiler)(unseen(function))
        return compiled

    def differentiated(self, function: Callable[..., Any], compiler: str | None) -> Callable[..., Any]:
        """Returns the function's `value_and_grad`. If `compiler` is set, the target's attribute of this name compiles it."""
        B: Any = self.array_operations()
        if not compiler or compiler == "compile":
            derivative: Callable[..., Any] = B.value_and_grad(
                self.compile(function, compiler) if compiler else function
            )
        else:
            derivative = getattr(self.module, compiler)(B.value_and_grad(unseen(function)))
        return derivative

    def derivative(self, job: "Job") -> Callable[[Values, Any], Values] | None:
        """Returns None, because `value_and_grad` differentiates a target. An adapter may return a function that calls `vjp`."""
        return None

    def array_operations(self) -> Any:
        """Returns an object that offers `value_and_grad`, `sum` and `cast` for the target's arrays."""
        return self.module

    def arrays(self, values: Mapping[str, Tensor], dtype: str | None = None) -> Values:
        """Copies values into arrays of the target, in the target's dtype or in `dtype`."""
        plain = {name: value.array.copy() for name, value in values.items()}
        arrays = self.module.from_numpy(plain, dtype or self.dtype.name)
        return {name: _strided(array) if self.strided else array for name, array in arrays.items()}

    def mixes(self, stage: Stage) -> bool:
        """Whether a stage runs a model in mixed precision, with float32 parameters and bfloat16 computation."""
        return function(stage.call).batched and self.dtype.name == "bfloat16"

    def finished(self, job: "Job", results: Any) -> Values:
        """Converts results to NumPy and reduces routings; see `finish`. Raises TypeError if a result is wider than the dtype."""
        on_numpy = self.module.to_numpy(results)
        if not job.on_numpy:
            self.check_dtypes(on_numpy)
        return finish(on_numpy)

    def check_dtypes(self, results: Mapping[str, Any]) -> None:
        """Raises TypeError for a float64 array in a run with lower precision, since float64 results must not pass as that precision."""
        widest = 8 if self.dtype.name == "float64" else 4
        for name, value in results.items():
            dtype = getattr(value, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize > widest:
                raise TypeError(f"{name} has dtype {dtype}, expected {self.dtype.name}")

    def copies(self, arrays: Values) -> Values:
        """Copies the target's arrays, for comparison after a call."""
        return {name: np.array(array) for name, array in self.module.to_numpy(arrays).items()}


def _strided(array: Any) -> Any:
    """Returns an equal tensor with gaps: a view of every second number of a tensor, with the last two axes swapped in memory."""
    if array.ndim < 2:
        return array.repeat_interleave(2)[::2] if array.ndim else array
    return array.mT.repeat_interleave(2, dim=-1)[..., ::2].mT


@dataclass(frozen=True)
class Facts:
    """A target's properties in one dtype.

    unsupported, without_gradients: the reason why the target lacks the dtype or gradients, or "". strides: whether its arrays
    can be strided. checks_values: whether the target must reject non-finite values. missing: the names that the target lacks;
    see `call.missing`. not_offered: the cases and options that the target declines, with reasons; see `declined.py`.
    """

    unsupported: str = ""
    checks_values: bool = False
    strides: bool = False
    without_gradients: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    not_offered: dict[str, str] = field(default_factory=dict)

    def declared(self, case: Case) -> str:
        """Returns the target's reason for declining a case, or ""."""
        reasons = (reason for entry, reason in self.not_offered.items() if declines(entry, case))
        return next((f"declared as not offered: {reason}" for reason in reasons), "")


@dataclass(frozen=True)
class Job:
    """One stage of one case, with the arrays that the stage reads."""

    case: Case
    stage: Stage
    values: dict[str, Tensor]

    @property
    def stages(self) -> dict[str, Stage]:
        """The case's stages by name."""
        return {stage.name: stage for stage in self.case.stages}

    @property
    def traced(self) -> bool:
        """Whether the stage can be compiled as a whole."""
        return function(self.stage.call).traced

    @property
    def on_numpy(self) -> bool:
        """Whether the stage receives NumPy arrays on every target, because its function is never compiled."""
        return function(self.stage.call).on_numpy

    @property
    def program(self) -> str:
        """A key made of calls, options, names, shapes and dtypes. Jobs that differ only in numbers have the same key."""
        called = [self.stage, *call.earlier(self.stage, self.stages, self.values)]
        calls = [(s.name, s.call, s.arguments, s.options) for s in called]
        arrays = sorted((name, value.array.dtype.str, value.array.shape) for name, value in self.values.items())
        inputs = sorted(name for name in self.values if name in self.case.inputs)
        return json.dumps([calls, arrays, inputs, sorted(self.stage.outputs)], sort_keys=True)

    def bind(self, target: Target, compiler: str | None = None) -> Callable[[Values], Values]:
        """Returns a function that takes only the stage's arrays and runs the stage on the target.

        compiler: compiles the inner functions of a stage that is not traced.
        """
        compile_ = partial(target.compile, compiler=compiler) if compiler and not self.traced else None
        result, wanted = target.result(self, compile_), tuple(self.stage.outputs)

        def run(values: Values) -> Values:
            return call.arrays(result(values), wanted)

        return run

    def arrays(self, target: Target) -> Values:
        """Converts the stage's values to arrays of the target: inputs in the target's dtype, earlier results in float32 or float64.

        A stage on NumPy arrays receives the same values, which the target has rounded and converted back to NumPy.
        """
        results = {name: value for name, value in self.values.items() if name not in self.case.inputs}
        inputs = {name: value for name, value in self.values.items() if name in self.case.inputs}
        arrays = {
            **target.arrays(inputs, "float32" if target.mixes(self.stage) else None),
            **target.arrays(results, target.wide),
        }
        return dict(target.module.to_numpy(arrays)) if self.on_numpy else arrays


def job_of(case: Case, name: str) -> Job:
    """Returns the job that runs the case's stage with this name."""
    values, stage = call.golden(case), case.stage(name)
    read = call.reads(stage, {each.name: each for each in case.stages}, values)
    return Job(case, stage, {reference: values[reference] for reference in read})


def execute(target: Target, jobs: Sequence[Job], mode: str) -> list[Values | Exception]:
    """Runs the jobs of one algorithm and returns the results or the exception of each job."""
    results: dict[int, Values | Exception] = {}
    by = compilers(target, jobs, mode)
    for compiler in filter(None, dict.fromkeys(by)):
        together = [job for job, its in zip(jobs, by, strict=True) if its == compiler and job.traced]
        if len(together) > 1:
            with suppress(Exception):
                results |= _compiled(target, together, compiler)
    return [
        results[id(job)] if id(job) in results else _alone(target, job, its) for job, its in zip(jobs, by, strict=True)
    ]


def compilers(target: Target, jobs: Sequence[Job], mode: str) -> list[str | None]:
    """Chooses the compiler of each job of one algorithm, or None to run op by op; see the module's docstring."""
    if mode != "compiled":
        return [None] * len(jobs)
    quick, trace = (
        next((name for name in names if hasattr(target.module, name)), "compile")
        for names in (("quick_compile",), ("trace", "quick_compile"))
    )
    generated = [target.dtype.name == "float32" and "generated_code" in job.case.flags for job in jobs]
    first = {job.stage.call: job for job in reversed(jobs) if job.case.expect is None}
    first |= {job.stage.call: job for job, code in zip(jobs, generated, strict=True) if code}
    return [
        "compile" if code else quick if first.get(job.stage.call) is job else trace
        for job, code in zip(jobs, generated, strict=True)
    ]


def _compiled(target: Target, jobs: Sequence[Job], compiler: str) -> dict[int, Values | Exception]:
    """Runs jobs in one compiled function, which is called repeatedly. Jobs that differ only in numbers share a part of the function."""
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.program, []).append(job)
    functions = [group[0].bind(target) for group in alike.values()]

    def together(values: list[Values]) -> list[Values]:
        return [function(own) for function, own in zip(functions, values, strict=True)]

    compiled, outcomes = target.compile(together, compiler), {}
    for turn in range(max(map(len, alike.values()))):
        chosen = [group[min(turn, len(group) - 1)] for group in alike.values()]
        arrays = [job.arrays(target) for job in chosen]
        before = [target.copies(own) for own in arrays]
        results = compiled(arrays)
        for job, own, copies, result in zip(chosen, arrays, before, results, strict=True):
            outcomes[id(job)] = _finished(target, job, result)
            check_unchanged(copies, target.copies(own))
    return outcomes


def _alone(target: Target, job: Job, compiler: str | None) -> Values | Exception:
    try:
        function = job.bind(target, compiler)
        if compiler and job.traced:
            function = target.compile(function, compiler)
        arrays = job.arrays(target)
        before = target.copies(arrays)
        results = _finished(target, job, function(arrays))
        check_unchanged(before, target.copies(arrays))
        return results
    except Exception as error:
        return error


def check_unchanged(before: Values, after: Values) -> None:
    """Raises ChangedError if an array has changed."""
    for name, array in before.items():
        if array.tobytes() != after[name].tobytes():
            raise ChangedError(f"the call changed its argument {name}")


def _finished(target: Target, job: Job, results: Any) -> Values | Exception:
    try:
        return target.finished(job, results)
    except Exception as error:
        malformed = MalformedError(f"{type(error).__name__}: {error}")
        malformed.__cause__ = error
        return malformed
