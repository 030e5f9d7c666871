"""Run the suite on a target: every case in every lane, and what came of it."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tqdm import tqdm

from moespec.conformance import negatives
from moespec.conformance.execute import execute, gradients, job_of
from moespec.conformance.format import Case
from moespec.conformance.judge import LANES, certified
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.results import CaseResult, Outcome, judged
from moespec.conformance.target import Target

__all__ = ["run", "run_lane"]


def run(
    name: str,
    cases: Sequence[Case],
    *,
    lanes: Sequence[str],
    modes: Sequence[str] = ("eager",),
    jobs: int = 1,
    door: type[Target] = Target,
) -> tuple[list[CaseResult], dict[str, str]]:
    """The results of all cases in all lanes and modes, and the lanes that the target refuses with its reason.

    jobs: processes that share the work, an algorithm in one lane and mode at a time. door: what `name` names.
    """
    # What is made of other things comes late in the registry and takes long, so it begins.
    groups = _by_algorithm(cases)[::-1]
    parts = [(door, name, lane, mode, group) for group in groups for mode in modes for lane in lanes]
    results: dict[tuple[str, str, str], CaseResult] = {}
    refused: dict[str, str] = {}
    with tqdm(total=len(cases) * len(lanes) * len(modes), desc=name, unit="case", disable=None) as bar:
        for part, (found, refusal) in zip(parts, _run_parts(parts, jobs), strict=True):
            _, _, lane, mode, group = part
            results |= {(mode, lane, result.id): result for result in found}
            refused |= {lane: refusal} if refusal else {}
            bar.set_postfix_str(f"{lane} {mode} {group[0].algorithm}")
            bar.update(len(group))
    order = ((mode, lane, case.id) for mode in modes for lane in lanes for case in cases)
    return [results[key] for key in order if key in results], refused


Part = tuple[type[Target], str, str, str, list[Case]]
"""Door, name of the target, lane, mode, and the cases of one algorithm."""


def _run_parts(parts: Sequence[Part], jobs: int) -> Iterator[tuple[list[CaseResult], str]]:
    if jobs == 1:
        yield from map(_run_part, parts)
        return
    # Frameworks have threads, so that a process of their own must not begin as a copy of this one.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run_part, parts)


def _run_part(part: Part) -> tuple[list[CaseResult], str]:
    """The results, and why the target refuses the lane or an empty string."""
    door, name, lane, mode, group = part
    target = door(name, LANES[lane])
    refusal = target.refusal()
    if refusal:
        return [], refusal
    begun = time.perf_counter()
    results = run_lane(target, group, mode)
    for result in results:
        result.seconds = (time.perf_counter() - begun) / len(results)
    return results, ""


def _by_algorithm(cases: Sequence[Case]) -> list[list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.algorithm, []).append(case)
    return list(groups.values())


def run_lane(target: Target, cases: Sequence[Case], mode: str) -> list[CaseResult]:
    """The results of the cases in the target's lane, algorithm by algorithm."""
    with target.context():
        return [result for group in _by_algorithm(cases) for result in _run_algorithm(target, group, mode)]


def _run_algorithm(target: Target, cases: Sequence[Case], mode: str) -> list[CaseResult]:
    cases = [target.asked(case) for case in cases]
    results = {c.id: CaseResult(c.id, c.algorithm, c.kind, target.lane.name, mode) for c in cases}

    wrong = [case for case in cases if case.expect is not None and _implemented(target, case, results)]
    for case, (state, message) in zip(wrong, negatives.run(target, wrong, mode), strict=True):
        results[case.id].outcomes.append(Outcome(case.expected_error.stage, state, 0.0, message))

    smooth = [case for case in cases if case.gradients and _differentiable(target, case, results)]
    for case, found in zip(smooth, gradients(target, smooth, mode), strict=True):
        sure = certified(case.decisions.get(case.expected_gradients.stage), target.lane)
        results[case.id].outcomes += judged("gradient", case.expected_gradients.wrt, found, target.lane, sure)

    # What a case is about comes first: its gradient, then the stage that is the whole. Steps explain what did not pass.
    names = {case.id: [record.name for record in case.stages] for case in cases}
    whole = {
        case.id: [n for n in names[case.id] if PROGRAMS[case.algorithm][n].whole] or names[case.id] for case in cases
    }
    _run_stages(target, [c for c in cases if results[c.id].state != "pass"], whole, results, mode)
    steps = {case.id: [n for n in names[case.id] if n not in whole[case.id]] for case in cases}
    _run_stages(target, [c for c in cases if results[c.id].state != "pass"], steps, results, mode)
    return list(results.values())


def _run_stages(
    target: Target, cases: Sequence[Case], names: dict[str, list[str]], results: dict[str, CaseResult], mode: str
) -> None:
    """Run the named stages of the cases and put their outcomes before those there are: they come earlier."""
    jobs = [job_of(case, name) for case in cases for name in names[case.id]]
    jobs = [job for job in jobs if _available(target, job.case, job.stage.name, results)]
    before: dict[str, list[Outcome]] = {}
    for job, found in zip(jobs, execute(target, jobs, mode), strict=True):
        expected = next(record.outputs for record in job.case.stages if record.name == job.stage.name)
        sure = certified(job.case.decisions.get(job.stage.name), target.lane)
        outcomes = judged(job.stage.name, expected, found, target.lane, sure)
        before.setdefault(job.case.id, []).extend(outcomes)
        if not isinstance(found, Exception) and any(outcome.state == "fail" for outcome in outcomes):
            results[job.case.id].returned[job.stage.name] = found
    for id, earlier in before.items():
        results[id].outcomes[:0] = earlier


def _available(target: Target, case: Case, stage: str, results: dict[str, CaseResult]) -> bool:
    lacks = target.lacks(PROGRAMS[case.algorithm][stage], case)
    if lacks:
        results[case.id].outcomes.append(Outcome(stage, "not implemented", 0.0, lacks))
    return not lacks


def _implemented(target: Target, case: Case, results: dict[str, CaseResult]) -> bool:
    return _available(target, case, case.expected_error.stage, results)


def _differentiable(target: Target, case: Case, results: dict[str, CaseResult]) -> bool:
    for name in ("value_and_grad", "sum", "cast"):
        if not hasattr(target.module, name):
            results[case.id].outcomes.append(Outcome("gradient", "not implemented", 0.0, f"{name} is missing"))
            return False
    return not target.lacks(PROGRAMS[case.algorithm][case.expected_gradients.stage], case)
