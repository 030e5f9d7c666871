"""Error cases: an invalid input raises the right error and names the argument, its valid counterpart raises nothing."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from moespec.conformance.check.target import Job, job_of
from moespec.conformance.failure import Failure
from moespec.conformance.format import Case

__all__ = ["invalid_and_valid", "verdict"]


def invalid_and_valid(case: Case) -> tuple[Job, Job]:
    """The job that must raise, and the one that is an edit away and must not."""
    wanted = case.expected_error
    edit = wanted.valid
    stages = tuple(
        replace(stage, options={**stage.options, **edit.options}) if stage.name == wanted.stage else stage
        for stage in case.stages
    )
    valid = replace(case, inputs={**case.inputs, **edit.inputs}, stages=stages)
    return job_of(case, wanted.stage), job_of(valid, wanted.stage)


def verdict(case: Case, invalid: object, valid: object, *, required: bool = False) -> tuple[str, str]:
    """State and message, from what the invalid and the valid call gave: results, or a failure.

    The class is compared by name along the bases, so that a target may have errors of its own; the argument must be a
    word of the message; nothing else of the text counts. A runtime error that is not raised is "unchecked", or a
    failure for a target that checks values (`required`).
    """
    want, argument = case.expected_error.error, case.expected_error.argument
    for result in (valid, invalid):
        if isinstance(result, Failure) and not result.classes:  # its process ended, or it is not offered
            return result.state, result.text
    if isinstance(valid, Failure):
        return "fail", f"the valid counterpart raises {valid.text}"
    raised = invalid if isinstance(invalid, Failure) and not invalid.returned else None
    if raised is None or want not in raised.classes:
        outcome = "no error" if raised is None else f"{raised.classes[0]} ({raised.message[:160]})"
        state = "unchecked" if case.expected_error.when == "runtime" and not required else "fail"
        return state, f"{outcome}; expected {want} naming {argument}"
    if not re.search(rf"\b{re.escape(argument)}\b", raised.message):
        return "fail", f"the message does not name {argument}: {raised.message[:160]}"
    return "pass", ""


def run(
    ask: Callable[[Sequence[Job], str], Sequence[object]], cases: Sequence[Case], mode: str, *, required: bool
) -> list[tuple[str, str]]:
    """The verdict on each error case. Of compiled code, which does not look at values, no runtime error is expected.

    ask: for what a target makes of jobs in a mode.
    """
    pairs = [invalid_and_valid(case) for case in cases]
    # Many error cases are an edit of the same valid one, which is run once.
    valid_jobs = {_content(valid): valid for _, valid in pairs}
    results = dict(zip(valid_jobs, ask(list(valid_jobs.values()), mode), strict=True))
    verdicts = []
    for case, (invalid, valid) in zip(cases, pairs, strict=True):
        known = results[_content(valid)]
        runs = not isinstance(known, Failure) or bool(known.classes)
        if runs and mode == "compiled" and case.expected_error.when == "runtime":
            verdicts.append(("unchecked", "values are not looked at in compiled code"))
        else:
            result = ask([invalid], mode)[0] if runs else known
            verdicts.append(verdict(case, result, known, required=required))
    return verdicts


def _content(job: Job) -> tuple[object, ...]:
    """What makes two jobs the same."""
    arrays = sorted((n, t.array.dtype.str, t.array.shape, t.array.tobytes()) for n, t in job.values.items())
    calls = [(stage.call, stage.arguments, stage.options) for stage in job.case.stages]
    return job.stage.name, json.dumps(calls, sort_keys=True), *arrays
