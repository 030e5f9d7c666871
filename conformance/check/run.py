"""Run the suite on a target: every case in every dtype, and its result."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from moespec.conformance.check import errors
from moespec.conformance.check.gradients import gradients
from moespec.conformance.check.modes import STRIDED
from moespec.conformance.check.repeat import repeated
from moespec.conformance.check.results import CaseResult
from moespec.conformance.check.target import ExitedError, Target, contained, execute, job_of
from moespec.conformance.compare import ALL_DTYPES, Outcome, certified, compared, exact
from moespec.conformance.format import Case

__all__ = ["Part", "run_cases", "run_part"]


@dataclass(frozen=True)
class Part:
    """The cases of one algorithm, to be run on a target in one dtype and mode; with `repeat` twice.

    limit: the seconds that a case may take, memory: the GiB that the target may have; None is no limit.
    """

    interface: type[Target]
    name: str
    dtype: str
    mode: str
    repeat: bool
    cases: list[Case]
    limit: float | None = None
    memory: float | None = None


def run_part(part: Part) -> tuple[list[CaseResult], str]:
    """The results, and why the target does not have the dtype, or an empty string."""
    begun = time.perf_counter()
    try:
        with contained():
            target = part.interface(part.name, ALL_DTYPES[part.dtype])
            reason = target.unsupported()
            results = [] if reason else run_cases(target, part.cases, part.mode, part.repeat)
    except ExitedError as error:  # where it is not called for a case
        return _lost(part, f"{type(error).__name__}: {error}"), ""
    for result in results:
        result.seconds = (time.perf_counter() - begun) / len(results)
    return results, reason


def _lost(part: Part, message: str) -> list[CaseResult]:
    """The results of cases of which no other came: each is an error."""
    outcome = Outcome("target", "error", math.inf, message)
    return [CaseResult(c.id, c.algorithm, c.kind, part.dtype, part.mode, [outcome]) for c in part.cases]


def _by_algorithm(cases: Sequence[Case]) -> list[list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.algorithm, []).append(case)
    return list(groups.values())


def run_cases(target: Target, cases: Sequence[Case], mode: str, repeat: bool = False) -> list[CaseResult]:
    """The results of the cases in the target's dtype, algorithm by algorithm; with `repeat` of two calls each.

    None where arrays of the target cannot be strided, and are to be.
    """
    with target.context():
        target.strided = mode == STRIDED
        if target.strided and not target.has_strides:
            return []
        return [result for group in _by_algorithm(cases) for result in _run_algorithm(target, group, mode, repeat)]


def _run_algorithm(target: Target, cases: Sequence[Case], mode: str, repeat: bool) -> list[CaseResult]:
    cases = [target.wanted(case) for case in cases]
    results = {c.id: CaseResult(c.id, c.algorithm, c.kind, target.dtype.name, mode) for c in cases}

    wrong = [c for c in cases if c.expect is not None and _available(target, c, c.expect.stage, results)]
    for case, (state, message) in zip(wrong, errors.run(target, wrong, mode), strict=True):
        results[case.id].outcomes.append(Outcome(case.expected_error.stage, state, 0.0, message))

    smooth = [case for case in cases if case.gradients and _differentiable(target, case, results)]
    computed = gradients(target, smooth, mode)
    again = gradients(target, smooth, mode) if repeat else computed
    for case, found, second in zip(smooth, computed, again, strict=True):
        results[case.id].outcomes += repeated("gradient", found, second)
        sure = certified(case.decisions.get(case.expected_gradients.stage), target.dtype)
        outcomes = compared("gradient", case.expected_gradients.wrt, found, target.dtype, sure)
        results[case.id].outcomes += outcomes
        if not isinstance(found, Exception) and any(outcome.state == "fail" for outcome in outcomes):
            results[case.id].returned["gradient"] = found

    # What every case is about comes first, the whole and its gradient. Steps explain what did not pass.
    values = [case for case in cases if case.expect is None]
    _run_stages(target, values, True, results, mode, repeat)
    _run_stages(target, [case for case in values if results[case.id].state != "pass"], False, results, mode, repeat)
    return list(results.values())


def _run_stages(
    target: Target, cases: Sequence[Case], whole: bool, results: dict[str, CaseResult], mode: str, repeat: bool
) -> None:
    """Run the whole of the cases, or their steps, and put the outcomes before those there are: they come earlier."""
    chosen = [(c, s.name) for c in cases for s in c.stages if s.outputs and (s.name in c.whole) == whole]
    jobs = [job_of(case, name) for case, name in chosen if _available(target, case, name, results)]
    before: dict[str, list[Outcome]] = {}
    computed = execute(target, jobs, mode)
    again = execute(target, jobs, mode) if repeat else computed
    for job, found, second in zip(jobs, computed, again, strict=True):
        sure = certified(job.case.decisions.get(job.stage.name), target.dtype)
        outcomes = repeated(job.stage.name, found, second)
        outcomes += compared(job.stage.name, job.stage.outputs, found, target.dtype, sure, job.stage.call)
        before.setdefault(job.case.id, []).extend(outcomes)
        if not isinstance(found, Exception) and any(outcome.state == "fail" for outcome in outcomes):
            results[job.case.id].returned[job.stage.name] = found
    for id, earlier in before.items():
        results[id].outcomes[:0] = earlier


def _available(target: Target, case: Case, stage: str, results: dict[str, CaseResult]) -> bool:
    state, reason = _obstacle(target, case, stage)
    if state:
        results[case.id].outcomes.append(Outcome(stage, state, 0.0, reason))
    return not state


def _obstacle(target: Target, case: Case, stage: str) -> tuple[str, str]:
    """The state of a stage that cannot be run, and why; two empty strings for one that can."""
    if lacks := target.lacks(case.stage(stage), case):
        return "not implemented", lacks
    if not all(exact(tensor.array, target.dtype) for tensor in case.inputs.values()):
        return "inconclusive", f"an input has numbers that {target.dtype.name} does not have"
    return "", ""


def _differentiable(target: Target, case: Case, results: dict[str, CaseResult]) -> bool:
    if lacks := target.lacks_gradients():
        results[case.id].outcomes.append(Outcome("gradient", "not implemented", 0.0, lacks))
        return False
    return not any(_obstacle(target, case, case.expected_gradients.stage))
