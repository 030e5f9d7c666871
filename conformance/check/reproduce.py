"""Inspect one stage of one case: its inputs, its expected results, and a target's results.

from moespec.conformance.check.reproduce import open_case

stage = open_case("token_choice/tied", "token_choice", target="my_package.my_router", dtype="float32")
print("inputs", stage.inputs, "expected", stage.expected["slots"], sep="\\n")
print("got", stage.run()["slots"], sep="\\n")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance import call
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.files import read
from moespec.conformance.check.gradients import gradients
from moespec.conformance.check.results import CaseResult, Report
from moespec.conformance.check.run import invalid_and_valid
from moespec.conformance.check.target import STRIDED, Job, Target, execute, job_of
from moespec.conformance.compare import ALL_DTYPES, SHORT
from moespec.conformance.format import Case
from moespec.conformance.suite import VECTORS, load

__all__ = ["OpenStage", "code", "open_case"]

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class OpenStage:
    """A stage that is ready to run.

    inputs: the stage's arrays by name. expected: results by name, or the class of the error that the stage must raise.
    run(): returns the target's results by name as NumPy arrays, and raises the target's exceptions.
    """

    inputs: Arrays
    expected: Mapping[str, Any]
    run: Callable[[], Arrays]


def open_case(
    id: str,
    stage: str,
    *,
    target: str = "",
    adapter: str = "",
    files: str = "",
    dtype: str = "float64",
    mode: str = "eager",
    seed: int | None = None,
    size: str = "small",
    vectors: Path = VECTORS,
) -> OpenStage:
    """Opens a stage (or `gradient`) of a case. `run` calls a target module or an adapter, or reads the results from a folder of files.

    seed, size: the seed and size of a fresh case. Raises ValueError if the case or stage does not exist.
    """
    if seed is None:
        cases = load(vectors, id.__eq__)
    else:
        from moespec.conformance.golden.fresh import fresh  # imports all cases

        cases = fresh(seed, id.__eq__, size=size)
    if not cases:
        raise ValueError(f"id: unknown case {id!r}")
    case = cases[0]
    job = _job(case, stage)
    inputs = {name: tensor.array for name, tensor in job.values.items()}
    if case.expect is not None:
        wanted: Mapping[str, Any] = {"error": f"{case.expect.error} naming {case.expect.argument}"}
    elif stage == "gradient":
        wanted = {name: value.array for name, value in case.expected_gradients.wrt.items()}
    else:
        wanted = {name: value.array for name, value in case.stage(stage).outputs.items()}
    if files:
        return OpenStage(inputs, wanted, partial(_read, Path(files) / f"{id}.safetensors", stage))
    precision = ALL_DTYPES[SHORT.get(dtype, dtype)]
    opened = Adapter(adapter, precision) if adapter else Target(target, precision)
    opened.strided = mode == STRIDED

    def run() -> Arrays:
        with opened.context():
            (result,) = (gradients if stage == "gradient" else execute)(opened, [job], mode)
        if isinstance(result, Exception):
            raise result
        return result

    return OpenStage(inputs, wanted, run)


def _job(case: Case, stage: str) -> Job:
    if case.expect is not None and stage == case.expect.stage:
        return invalid_and_valid(case)[0]
    if case.gradients is not None and stage == "gradient":
        return job_of(case, case.gradients.stage)
    if stage not in [each.name for each in case.stages]:
        raise ValueError(f"stage: {case.id} has no stage {stage!r}")
    return job_of(case, stage)


def _read(path: Path, stage: str) -> Arrays:
    tensors = read(path)
    return {name.split("/", 1)[1]: np.array(t.array) for name, t in tensors.items() if name.startswith(f"{stage}/")}


def code(report: Report, result: CaseResult, case: Case) -> str:
    """Returns a self-contained Python program that shows where a failed case first differs, or "" if the case lacks the stage."""
    stage, _, name = result.first.stage.partition("/")
    stages = {each.name: each for each in case.stages}
    if stage != "gradient" and stage not in stages:
        return ""
    calls = ["value_and_grad"] if stage == "gradient" else call.names(stages[stage], stages, call.golden(case))
    compiled = report.interface == "adapter" and result.mode != "eager"
    mode = f", mode={result.mode!r}" if report.interface == "target" or compiled else ""
    mode += "" if report.seed is None else f", seed={report.seed}"
    mode += "" if report.size == "small" else f", size={report.size!r}"
    pick = f".get({name!r})" if name else ""
    opened = f"{case.id!r}, {stage!r}, {report.interface}={report.target!r}, dtype={result.dtype!r}{mode}"
    return "\n".join(
        (
            "from moespec.conformance.check.reproduce import open_case",
            "",
            f"stage = open_case({opened})",
            'print("inputs", stage.inputs, sep="\\n")',
            f'print("expected", stage.expected{pick}, sep="\\n")',
            f'print("got", stage.run(){pick}, sep="\\n")'
            + (f"  # {', '.join(calls)}" if calls and report.interface == "target" else ""),
        )
    )
