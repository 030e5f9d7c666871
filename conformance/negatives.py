"""Judge negatives: the fault raises the right error and names the argument, and its twin raises nothing."""

import json
import re
from dataclasses import replace

from moespec.conformance.execute import Job, MalformedError, execute
from moespec.conformance.format import Case
from moespec.conformance.program import select
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.target import Target

__all__ = ["fault_and_twin", "verdict"]


def fault_and_twin(case: Case) -> tuple[Job, Job]:
    """The job that must raise, and the one that is an edit away and must not."""
    stage = PROGRAMS[case.algorithm][case.expected_error.stage]
    edit = case.expected_error.twin
    twin = replace(case, inputs={**case.inputs, **edit.inputs}, config={**case.config, **edit.config})
    return Job(case, stage, select(case.inputs, stage.reads)), Job(twin, stage, select(twin.inputs, stage.reads))


def verdict(case: Case, fault: object, twin: object, *, required: bool = False) -> tuple[str, str]:
    """State and message, from what the fault and the twin gave: results, or an exception.

    The class is compared by name along the bases, so that a target may have errors of its own; the argument must be a
    word of the message; nothing else of the text counts. A runtime fault that is not recognised is "unchecked", or
    a failure for a target that checks values (`required`).
    """
    want, argument = case.expected_error.error, case.expected_error.argument
    if isinstance(twin, Exception):
        return "fail", f"the valid twin raises {type(twin).__name__}: {twin}"
    silent = not isinstance(fault, Exception) or isinstance(fault, MalformedError)
    if silent or want not in [base.__name__ for base in type(fault).__mro__]:
        found = "no error" if silent else f"{type(fault).__name__} ({str(fault)[:160]})"
        state = "unchecked" if case.expected_error.when == "runtime" and not required else "fail"
        return state, f"{found}; expected {want} naming {argument}"
    if not re.search(rf"\b{re.escape(argument)}\b", str(fault)):
        return "fail", f"the message does not name {argument}: {str(fault)[:160]}"
    return "pass", ""


def run(target: Target, cases: list[Case], mode: str) -> list[tuple[str, str]]:
    """The verdict on each negative. Runtime faults are not run in compiled code, which does not look at values."""
    pairs = [fault_and_twin(case) for case in cases]
    # Many faults are an edit of the same thing, which is run once.
    twins = {_content(twin): twin for _, twin in pairs}
    results = dict(zip(twins, execute(target, list(twins.values()), mode), strict=True))
    found = []
    for case, (fault, valid) in zip(cases, pairs, strict=True):
        twin = results[_content(valid)]
        if mode == "compiled" and case.expected_error.when == "runtime":
            found.append(("unchecked", "values are not looked at in compiled code"))
        else:
            found.append(verdict(case, execute(target, [fault], mode)[0], twin, required=target.checks_values))
    return found


def _content(job: Job) -> tuple[object, ...]:
    """What makes two jobs the same."""
    arrays = sorted((n, t.array.dtype.str, t.array.shape, t.array.tobytes()) for n, t in job.values.items())
    return job.case.algorithm, job.stage.name, json.dumps(job.case.config, sort_keys=True), *arrays
