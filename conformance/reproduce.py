"""One stage of one case, to be looked at: what it reads, what is expected, and what a target computes.

from moespec.conformance.reproduce import open_case

stage = open_case("token_choice/tied", "allocation", target="my_package.my_router", lane="f32")
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

from moespec.conformance.adapter import Adapter
from moespec.conformance.execute import Job, execute, gradients, job_of
from moespec.conformance.files import read
from moespec.conformance.format import Case
from moespec.conformance.judge import LANES
from moespec.conformance.negatives import fault_and_twin
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.report import Report
from moespec.conformance.results import CaseResult
from moespec.conformance.suite import VECTORS, load
from moespec.conformance.target import Target

__all__ = ["OpenStage", "code", "open_case"]

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class OpenStage:
    """A stage ready to run.

    inputs: what it reads, by name. expected: its results by name, or the class of the error that it must raise. run():
    the target's results by name, on NumPy; it raises what the target raises.
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
    lane: str = "f64",
    mode: str = "eager",
    vectors: Path = VECTORS,
) -> OpenStage:
    """The stage (or `gradient`) of the case with that id, for one of: a target module, an adapter, a folder of files.

    Raises ValueError if there is no such case or stage.
    """
    case = next(iter(load(vectors, lambda known: known == id)), None)
    if case is None:
        raise ValueError(f"id: there is no case {id!r}")
    job = _job(case, stage)
    inputs = {name: tensor.array for name, tensor in job.values.items()}
    if case.expect is not None:
        wanted: Mapping[str, Any] = {"error": f"{case.expect.error} naming {case.expect.argument}"}
    elif stage == "gradient":
        wanted = {name: value.array for name, value in case.expected_gradients.wrt.items()}
    else:
        record = next(record for record in case.stages if record.name == stage)
        wanted = {name: value.array for name, value in record.outputs.items()}
    if files:
        return OpenStage(inputs, wanted, partial(_read, Path(files) / f"{id}.safetensors", stage))
    opened = Adapter(adapter, LANES[lane]) if adapter else Target(target, LANES[lane])
    return OpenStage(inputs, wanted, partial(_run, opened, job, stage, mode))


def _job(case: Case, stage: str) -> Job:
    if case.expect is not None and stage == case.expect.stage:
        return fault_and_twin(case)[0]
    if case.gradients is not None and stage == "gradient":
        return job_of(case, case.gradients.stage)
    if stage not in [record.name for record in case.stages]:
        raise ValueError(f"stage: {case.id} has no stage {stage!r}")
    return job_of(case, stage)


def _run(target: Target, job: Job, stage: str, mode: str) -> Arrays:
    with target.context():
        (found,) = gradients(target, [job.case], mode) if stage == "gradient" else execute(target, [job], mode)
    if isinstance(found, Exception):
        raise found
    return found


def _read(path: Path, stage: str) -> Arrays:
    found = read(path)
    return {name.split("/", 1)[1]: np.array(t.array) for name, t in found.items() if name.startswith(f"{stage}/")}


def code(report: Report, result: CaseResult) -> str:
    """A few lines of Python that show where a failed case first differs and run as they stand, or an empty string."""
    stage, _, name = result.first.stage.partition("/")
    stages = PROGRAMS[result.algorithm]
    if stage != "gradient" and stage not in stages:
        return ""
    calls = "value_and_grad" if stage == "gradient" else ", ".join(stages[stage].calls)
    mode = f", mode={result.mode!r}" if report.door == "target" else ""
    pick = f".get({name!r})" if name else ""
    return "\n".join(
        (
            "from moespec.conformance.reproduce import open_case",
            "",
            f"stage = open_case({result.id!r}, {stage!r}, {report.door}={report.target!r}, lane={result.lane!r}{mode})",
            'print("inputs", stage.inputs, sep="\\n")',
            f'print("expected", stage.expected{pick}, sep="\\n")',
            f'print("got", stage.run(){pick}, sep="\\n")' + (f"  # {calls}" if report.door == "target" else ""),
        )
    )
