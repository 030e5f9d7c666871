"""Run the suite on a target: every case in every dtype, and its result."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.check import errors
from moespec.conformance.check.process import LIMIT, EndedError, Remote
from moespec.conformance.check.results import CaseResult
from moespec.conformance.check.target import STRIDED, Facts, Job, Target, job_of
from moespec.conformance.check.worker import Answer, answers
from moespec.conformance.compare import ALL_DTYPES, Outcome, certified, compared, exact
from moespec.conformance.failure import Failure
from moespec.conformance.format import Case

__all__ = ["run_cases", "run_part"]


def run_part(
    interface: type[Target],
    name: str,
    cases: Sequence[Case],
    dtype: str,
    mode: str = "eager",
    *,
    repeat: bool = False,
    limit: float = LIMIT,
    memory: float = 0.0,
) -> tuple[list[CaseResult], str]:
    """The results of the cases of one algorithm, and why the target does not have the dtype, or an empty string.

    The target runs in a process that the next part has, too, until `process.end` is called. repeat: whether each case is
    run twice. limit: the seconds that a case may take. memory: the GiB that the target's process may address, 0 for any
    number: JAX and GPUs reserve many times what they use.
    """
    begun = time.perf_counter()
    target = Remote(interface, name, ALL_DTYPES[dtype], limit, int(memory * 2**30))
    try:
        reason = target.facts().unsupported
        results = [] if reason else run_cases(target, cases, mode, repeat)
    except EndedError as error:  # where it is not called for a case
        lost = error.failure
        outcome = Outcome("target", lost.state, lost.fraction, lost.text, lost.trace)
        return [CaseResult(c.id, c.algorithm, c.kind, dtype, mode, [outcome]) for c in cases], ""
    for result in results:
        result.seconds = (time.perf_counter() - begun) / len(results)
    return results, reason


def _by_algorithm(cases: Sequence[Case]) -> list[list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.algorithm, []).append(case)
    return list(groups.values())


def run_cases(target: Target | Remote, cases: Sequence[Case], mode: str, repeat: bool = False) -> list[CaseResult]:
    """The results of the cases in the target's dtype, algorithm by algorithm; with `repeat` of two calls each.

    None where arrays of the target cannot be strided, and are to be. A Target is called in this process.
    """
    facts = target.facts()
    if mode == STRIDED and not facts.strides:
        return []
    ask = target.answers if isinstance(target, Remote) else partial(answers, target)
    running = _Run(target, ask, facts, mode, repeat)
    groups = _by_algorithm([target.wanted(case) for case in cases])
    return [result for group in groups for result in running.results(group)]


@dataclass(frozen=True)
class _Run:
    """Cases run on a target, which `answers` asks, as `worker.answers` does."""

    target: Target | Remote
    answers: Callable[..., list[Answer]]
    facts: Facts
    mode: str
    repeat: bool

    def ask(self, jobs: Sequence[Job], mode: str, *, gradient: bool = False) -> list[Answer]:
        """What the target makes of jobs, or of their gradients, or why it is not asked."""
        obstacles = [self._obstacle(job, gradient) for job in jobs]
        able = [job for job, obstacle in zip(jobs, obstacles, strict=True) if obstacle is None]
        results = iter(self.answers(able, mode, gradient=gradient) if able else ())
        return [next(results) if obstacle is None else obstacle for obstacle in obstacles]

    def _obstacle(self, job: Job, gradient: bool) -> Failure | None:
        """Why a job, or its gradient, cannot be run, if so."""
        dtype = self.target.dtype
        lacks = self.facts.without_gradients if gradient else ""
        if lacks := lacks or self.target.lacks(job, self.facts, dtype):
            return Failure(lacks, state="not implemented")
        if not all(exact(tensor.array, dtype) for tensor in job.case.inputs.values()):
            return Failure(f"an input has numbers that {dtype.name} does not have", state="inconclusive")
        return None

    def results(self, cases: Sequence[Case]) -> list[CaseResult]:
        """The results of the cases of one algorithm."""
        results = {c.id: CaseResult(c.id, c.algorithm, c.kind, self.target.dtype.name, self.mode) for c in cases}
        if wrong := [case for case in cases if case.expect is not None]:
            verdicts = errors.run(self.ask, wrong, self.mode, required=self.facts.checks_values)
            for case, (state, message) in zip(wrong, verdicts, strict=True):
                results[case.id].outcomes.append(Outcome(case.expected_error.stage, state, 0.0, message))

        smooth = [case for case in cases if case.gradients]
        jobs = [job_of(case, case.expected_gradients.stage) for case in smooth]
        for job, outcomes in self._outcomes(jobs, results, gradient=True):
            results[job.case.id].outcomes += outcomes

        # What every case is about comes first, the whole and its gradient. Steps explain what did not pass.
        values = [case for case in cases if case.expect is None]
        self._stages(values, results, whole=True)
        self._stages([case for case in values if results[case.id].state != "pass"], results, whole=False)
        return list(results.values())

    def _stages(self, cases: Sequence[Case], results: dict[str, CaseResult], *, whole: bool) -> None:
        """Run the whole of the cases, or their steps, and put the outcomes before those there are: they come earlier."""
        chosen = [(c, s.name) for c in cases for s in c.stages if s.outputs and (s.name in c.whole) == whole]
        before: dict[str, list[Outcome]] = {}
        for job, outcomes in self._outcomes([job_of(case, name) for case, name in chosen], results):
            before.setdefault(job.case.id, []).extend(outcomes)
        for id, earlier in before.items():
            results[id].outcomes[:0] = earlier

    def _outcomes(
        self, jobs: Sequence[Job], results: dict[str, CaseResult], *, gradient: bool = False
    ) -> Iterator[tuple[Job, list[Outcome]]]:
        """What came of each job, or of its gradient; what was returned where it is wrong goes to the results."""
        first = self.ask(jobs, self.mode, gradient=gradient)
        second = iter(self.ask(jobs, self.mode, gradient=gradient) if self.repeat else ())
        for job, answer in zip(jobs, first, strict=True):
            case, stage = job.case, job.stage
            name, call = ("gradient", "") if gradient else (stage.name, stage.call)
            expected = case.expected_gradients.wrt if gradient else stage.outputs
            sure = certified(case.decisions.get(stage.name), self.target.dtype)
            outcomes = _repeated(name, answer, next(second)) if self.repeat else []
            outcomes += compared(name, expected, answer, self.target.dtype, sure, call)
            if not isinstance(answer, Failure) and any(outcome.state == "fail" for outcome in outcomes):
                results[case.id].returned[name] = answer
            yield job, outcomes


def _repeated(stage: str, first: Mapping[str, Any] | Failure, second: Mapping[str, Any] | Failure) -> list[Outcome]:
    """A failure for each result of a stage that is not the same in both calls.

    One without results is a failure already if it is the first, and an error if it is the second alone.
    """
    if isinstance(first, Failure):
        return []
    if isinstance(second, Failure):
        return [Outcome(stage, "error", math.inf, f"in the second call: {second.text}")]
    outcomes = []
    for name, array in first.items():
        a, b = np.asarray(array), np.asarray(second.get(name))
        if (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes():
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            text = f"{a.dtype} {a.shape}, then {b.dtype} {b.shape}"
        else:
            text = f"{np.count_nonzero(a != b)} of {a.size} entries are others the second time"
        outcomes.append(Outcome(f"{stage}/{name}", "fail", math.inf, f"not repeatable: {text}"))
    return outcomes
