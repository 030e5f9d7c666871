"""Run the suite on a target: select cases, group them, and collect each case's result in every dtype."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moespec.conformance import suite
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.process import LIMIT, EndedError, Remote
from moespec.conformance.check.results import FAILED, CaseResult, Report, Unsupported, unpacked, with_other_runs
from moespec.conformance.check.target import STRIDED, Facts, Job, Target, job_of
from moespec.conformance.check.waivers import Waiver, waived
from moespec.conformance.check.worker import Answer, answers
from moespec.conformance.compare import ALL_DTYPES, Outcome, certified, compared, exact
from moespec.conformance.failure import Failure
from moespec.conformance.format import Case
from moespec.conformance.functions import function

if TYPE_CHECKING:
    from moespec.conformance.check.match_variant import Known

__all__ = ["Plan", "invalid_and_valid", "run_cases", "run_part", "verdict"]

STRIDED_KINDS = ("value", "degenerate", "overflow", "tie", "gradient")
"""The kinds of cases eligible for the mode `strided`."""


@dataclass(frozen=True)
class Plan:
    """The plan of a run, with the case ids, dtypes and modes that the run covers.

    report: a report without results, which names the target and the seed of fresh cases. limit, memory: see `run_part`.
    """

    report: Report
    ids: Sequence[str]
    dtypes: Sequence[str]
    modes: Sequence[str]
    waivers: Sequence[Waiver] = ()
    vectors: Path = suite.VECTORS
    limit: float = LIMIT
    memory: float = 0.0

    def parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yields the parts (dtype, mode, case ids of one algorithm) that run together.

        Composite algorithms, which are last in the registry, run first because they are slow.
        """
        groups = [list(group) for _, group in groupby(self.ids, lambda id: id.partition("/")[0])]
        for group in groups[::-1]:
            for mode in self.modes:
                if mode != STRIDED:
                    yield from ((dtype, mode, group) for dtype in self.dtypes)
                elif ids := self._strided(group):
                    yield "float32" if "float32" in self.dtypes else self.dtypes[0], mode, ids

    def _strided(self, ids: Sequence[str]) -> list[str]:
        """Returns the ids of one forward case and one gradient case per function. Prefers cases that test few functions."""
        about = {id: self._about(id) for id in ids}
        firsts: dict[tuple[bool, str], str] = {}
        for kind in STRIDED_KINDS:
            for id in sorted(ids, key=lambda id: len(about[id][1])):
                for call in about[id][1] if about[id][0] == kind else ():
                    firsts.setdefault((kind == "gradient", call), id)
        return [id for id in ids if id in firsts.values()]

    def _about(self, id: str) -> tuple[str, list[str]]:
        """Returns the class of a case and the calls that the case tests. A small fresh case makes the same calls as the committed case."""
        if (path := self.vectors / f"{id}.json").exists():
            return suite.about(path)
        from moespec.conformance.golden import fresh  # imports all cases

        return fresh.kind(id), ["moe_layer"]

    def check(self, dtype: str, mode: str, ids: Sequence[str]) -> dict[str, Report]:
        """Runs some or all cases of a part, and returns a report for each id. If the target lacks the mode, the reports have no results.

        Raises VectorError for a damaged vector and GoldenError for a fresh case that cannot be generated.
        """
        place, repeat = (self.vectors, self.report.seed), self.report.repeat
        cases = [_case(*place, id) for id in ids]
        interface, how = Adapter if self.report.interface == Adapter.kind else Target, (self.limit, self.memory)
        results, reason, called = run_part(interface, self.report.target, cases, dtype, mode, repeat, *how)
        counted = int(mode != STRIDED or set(self.modes) == {STRIDED})
        lacking = [Unsupported(dtype, reason, counted)] if reason else []
        report = replace(self.report, results=results, unsupported=lacking, called=called)
        if any(result.state in FAILED for result in results):
            from moespec.conformance.check.explain import diagnosed  # imports all known variants

            report = diagnosed(report, _known(*place, tuple(ids)))
        settled = {one.id: [waived(self.waivers, replace(one, returned={}))] for one in report.results}
        return {id: replace(report, results=settled.get(id, [])) for id in ids}

    def packed(self) -> str:
        """Serialise the plan for another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def unpacked(cls, text: str) -> "Plan":
        """Returns the plan that `packed` serialised."""
        plan = json.loads(text)
        waivers = [Waiver(**each) for each in plan["waivers"]]
        return cls(**plan | {"report": unpacked(plan["report"]), "waivers": waivers, "vectors": Path(plan["vectors"])})

    def joined(self, reports: Sequence[Report]) -> Report:
        """Merges reports of single cases into one report. The order of the reports has no effect."""
        numbers = {id: number for number, id in enumerate(self.ids)}

        def place(report: Report) -> tuple[int, int, int]:
            (one,) = report.results
            return self.modes.index(one.mode), self.dtypes.index(one.dtype), numbers[one.id]

        ran = sorted((report for report in reports if report.results), key=place)
        lacking: Counter[tuple[int, str]] = Counter()
        for each in (each for report in reports for each in report.unsupported):
            lacking[self.dtypes.index(each.dtype), each.reason] += each.cases
        return replace(
            self.report,
            results=with_other_runs([one for report in ran for one in report.results]),
            called=sorted({name for report in reports for name in report.called}),
            matches=list(dict.fromkeys(match for report in ran for match in report.matches)),
            unsupported=[Unsupported(self.dtypes[n], why, cases) for (n, why), cases in sorted(lacking.items())],
        )


@cache
def _case(vectors: Path, seed: int | None, id: str) -> Case:
    if seed is None:
        return suite.case(vectors / f"{id}.json")
    from moespec.conformance.golden import fresh

    return fresh.made(seed, id)


@lru_cache(maxsize=1)
def _known(vectors: Path, seed: int | None, ids: Sequence[str]) -> "Known":
    """Returns an object that runs known variants on the cases, always in float64, so the object serves all dtypes."""
    from moespec.conformance.check.match_variant import Known

    return Known([_case(vectors, seed, id) for id in ids])


def run_part(
    interface: type[Target],
    name: str,
    cases: Sequence[Case],
    dtype: str,
    mode: str = "eager",
    repeat: bool = False,
    limit: float = LIMIT,
    memory: float = 0.0,
) -> tuple[list[CaseResult], str, list[str]]:
    """Returns the results of an algorithm, the reason why the dtype is unsupported or "", and the moespec functions that the target calls.

    The target runs in a process that later parts reuse until `process.end` is called. repeat: whether to run each case
    twice. limit: seconds per case. memory: maximum address space of the target's process in GiB, or 0 for no limit. Use 0 for
    JAX and GPUs, which reserve far more address space than they use.
    """
    begun = time.perf_counter()
    target = Remote(interface, name, ALL_DTYPES[dtype], limit, int(memory * 2**30))
    try:
        reason = target.facts().unsupported
        results = [] if reason else run_cases(target, cases, mode, repeat)
    except EndedError as error:  # an error outside of any case
        lost = error.failure
        outcome = Outcome("target", lost.state, lost.fraction, lost.text, lost.trace)
        return [CaseResult(c.id, c.algorithm, c.kind, dtype, mode, [outcome]) for c in cases], "", target.called
    for result in results:
        result.seconds = (time.perf_counter() - begun) / len(results)
    return results, reason, target.called


def run_cases(target: Target | Remote, cases: Sequence[Case], mode: str, repeat: bool = False) -> list[CaseResult]:
    """Runs the cases in the target's dtype, algorithm by algorithm. With `repeat`, calls each stage twice.

    Returns no results if the mode needs strided arrays and the target has none. A `Remote` runs in a separate process.
    """
    facts = target.facts()
    if mode == STRIDED and not facts.strides:
        return []
    ask = target.answers if isinstance(target, Remote) else partial(answers, target)
    running = _Run(target, ask, facts, mode, repeat)
    groups = groupby(map(target.wanted, cases), attrgetter("algorithm"))
    return [result for _, group in groups for result in running.results(list(group))]


@dataclass(frozen=True)
class _Run:
    """A run of cases on a target. `answers` has the interface of `worker.answers`."""

    target: Target | Remote
    answers: Callable[..., list[Answer]]
    facts: Facts
    mode: str
    repeat: bool

    def ask(self, jobs: Sequence[Job], mode: str, *, gradient: bool = False) -> list[Answer]:
        """Returns the target's answer to each job or to its gradient. The answer to a job that cannot run is a failure with the reason."""
        obstacles = [self._obstacle(job, gradient) for job in jobs]
        able = [job for job, obstacle in zip(jobs, obstacles, strict=True) if obstacle is None]
        results = iter(self.answers(able, mode, gradient=gradient) if able else ())
        return [next(results) if obstacle is None else obstacle for obstacle in obstacles]

    def _obstacle(self, job: Job, gradient: bool) -> Failure | None:
        """Returns a failure with the reason why a job or its gradient cannot run, or None if it can run."""
        dtype = self.target.dtype
        lacks = self.facts.without_gradients if gradient else ""
        if lacks := lacks or self.target.lacks(job, self.facts, dtype):
            return Failure(lacks, state="not implemented")
        # A model has float32 parameters in every dtype, so its inputs need not be exact in the dtype.
        if not function(job.stage.call).batched and not all(exact(t.array, dtype) for t in job.case.inputs.values()):
            return Failure(f"an input has numbers that {dtype.name} does not have", state="inconclusive")
        return None

    def results(self, cases: Sequence[Case]) -> list[CaseResult]:
        """Returns the results of one algorithm's cases."""
        results = {c.id: CaseResult(c.id, c.algorithm, c.kind, self.target.dtype.name, self.mode) for c in cases}
        for case, (state, message) in self._verdicts([case for case in cases if case.expect is not None]):
            results[case.id].outcomes.append(Outcome(case.expected_error.stage, state, 0.0, message))

        smooth = [case for case in cases if case.gradients]
        jobs = [job_of(case, case.expected_gradients.stage) for case in smooth]
        for job, outcomes in self._outcomes(jobs, results, gradient=True):
            results[job.case.id].outcomes += outcomes

        # Main stages and gradients run first. Compiled steps run only to explain failures, because compilation is slow.
        values = [case for case in cases if case.expect is None]
        self._stages(values, results, whole=True)
        passed = {case.id for case in values if results[case.id].state == "pass"}
        stepwise = [case for case in values if case.id not in passed or self.mode != "compiled"]
        self._stages(stepwise, results, whole=False, passed=passed)
        return list(results.values())

    def _verdicts(self, cases: Sequence[Case]) -> Iterator[tuple[Case, tuple[str, str]]]:
        """Yields the verdict on each error case. Compiled code need not raise runtime errors, since such code does not inspect values."""
        pairs = [invalid_and_valid(case) for case in cases]
        # Many error cases are edits of one valid case, which runs only once.
        valid_jobs = {_content(valid): valid for _, valid in pairs}
        known = dict(zip(valid_jobs, self.ask(list(valid_jobs.values()), self.mode), strict=True))
        for case, (invalid, valid) in zip(cases, pairs, strict=True):
            found = known[_content(valid)]
            runs = not isinstance(found, Failure) or bool(found.classes)
            if runs and self.mode == "compiled" and case.expected_error.when == "runtime":
                yield case, ("unchecked", "values are not looked at in compiled code")
            else:
                result = self.ask([invalid], self.mode)[0] if runs else found
                yield case, verdict(case, result, found, required=self.facts.checks_values)

    def _stages(
        self, cases: Sequence[Case], results: dict[str, CaseResult], *, whole: bool, passed: Collection[str] = ()
    ) -> None:
        """Runs the main stages (if `whole`) or the steps of cases. The outcomes of steps precede those of main stages.

        passed: ids of the cases whose main stages pass. In these cases, steps that cannot run are ignored, but failing steps are not.
        """
        chosen = [(c, s.name) for c in cases for s in c.stages if s.outputs and (s.name in c.whole) == whole]
        before: dict[str, list[Outcome]] = {}
        for job, outcomes in self._outcomes([job_of(case, name) for case, name in chosen], results):
            counted = [o for o in outcomes if job.case.id not in passed or o.state in (*FAILED, "pass")]
            before.setdefault(job.case.id, []).extend(counted)
        for id, earlier in before.items():
            results[id].outcomes[:0] = earlier

    def _outcomes(
        self, jobs: Sequence[Job], results: dict[str, CaseResult], *, gradient: bool = False
    ) -> Iterator[tuple[Job, list[Outcome]]]:
        """Yields each job with the outcomes of its results or gradients. Stores the returned values of a failing job in `results`."""
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
    """Returns a failure for each result of a stage that differs between two calls.

    Returns nothing if the first call fails, because `compared` reports that failure. Returns an error if only the second call fails.
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
            text = f"{np.count_nonzero(a != b)} of {a.size} entries differ in the second call"
        outcomes.append(Outcome(f"{stage}/{name}", "fail", math.inf, f"not repeatable: {text}"))
    return outcomes


def invalid_and_valid(case: Case) -> tuple[Job, Job]:
    """Returns the invalid job, which must raise an error, and the valid job, which differs from the invalid job in one edit."""
    wanted = case.expected_error
    edit = wanted.valid
    stages = tuple(
        replace(stage, options={**stage.options, **edit.options}) if stage.name == wanted.stage else stage
        for stage in case.stages
    )
    valid = replace(case, inputs={**case.inputs, **edit.inputs}, stages=stages)
    return job_of(case, wanted.stage), job_of(valid, wanted.stage)


def verdict(case: Case, invalid: object, valid: object, *, required: bool = False) -> tuple[str, str]:
    """Returns the state and the message of an error case. invalid, valid: the target's answers (results or failures) to the two calls.

    The error's class, or a base class, must have the expected name, so a target may define its own errors. The message must contain the
    argument's name as a word. The rest of the message is ignored. If a runtime error is missing, the state is "fail" for a
    target that checks values (`required`), and "unchecked" for other targets.
    """
    want, argument = case.expected_error.error, case.expected_error.argument
    for result in (valid, invalid):
        if isinstance(result, Failure) and not result.classes:  # the process ended, or the target declines the call
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


def _content(job: Job) -> tuple[object, ...]:
    """Returns a key that is the same for equal jobs."""
    arrays = sorted((n, t.array.dtype.str, t.array.shape, t.array.tobytes()) for n, t in job.values.items())
    calls = [(stage.call, stage.arguments, stage.options) for stage in job.case.stages]
    return job.stage.name, json.dumps(calls, sort_keys=True), *arrays
