"""Compare a target's wrong results with known variants, to find out what a third-party router computes instead.

For each failing stage, the variants run on the stage's arrays. A variant agrees with the target in a stage if the results of both are
equal within a few tolerances and differ from the results of the specification and of the reference backend. Target and variant
disagree in a stage if the target passes the stage and the variant fails, or if only the target raises an exception.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from moespec.conformance.author.variant import module_of, noting
from moespec.conformance.cases import variants
from moespec.conformance.check.results import CaseResult, Match
from moespec.conformance.check.target import Job, Target, Values, execute, job_of
from moespec.conformance.compare import ALL_DTYPES, DTYPES, Dtype, compare, precision
from moespec.conformance.format import Case, Value
from moespec.conformance.functions import function

__all__ = ["DTYPE", "Known", "called", "match_variants"]

DTYPE = DTYPES["float64"]
"""The dtype in which variants run."""

ENOUGH = 0.5
"""A partial explanation is reported if the variant agrees in at least this fraction of the stages that fail on the variant
or the target."""

SLACK = 4
"""Maximum distance, in tolerances, between a target's and a matching variant's result, whose error scale is only estimated. The
target must be at least twice as far from the expected result. A variant farther than this from the expected result fails the stage."""

Place = tuple[str, str]
"""(case id, stage)."""


def called(job: Job) -> set[str]:
    """Returns the public names and routers that a stage of the case calls."""
    names: set[str] = set()
    execute(Target("recorded", DTYPE, noting(names)), [job], "eager")
    return names


def match_variants(results: Sequence[CaseResult], known: "Known") -> list[Match]:
    """Returns the variants that a target matches, for each algorithm, dtype and mode.

    A variant matches if it agrees with the target in every stage in which the target or the variant fails. If no variant
    matches, returns variants that together explain some of the failures. Variants that explain more stages come first.
    """
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for result in results:
        groups.setdefault((result.algorithm, result.dtype, result.mode), []).append(result)
    failing = {key: group for key, group in groups.items() if any(result.returned for result in group)}
    matches = []
    for (algorithm, dtype, mode), group in failing.items():
        for name, agree, of in _explained(known, group, ALL_DTYPES[dtype]):
            v = variants()[name]
            matches.append(Match(algorithm, dtype, mode, v.name, v.computes, v.ledger, v.who, agree, of))
    return matches


class Known:
    """The results of variants for stages of cases. Each result is computed on demand, once for all dtypes."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = {case.id: case for case in cases}
        self.target = cache(lambda name: Target(name, DTYPE, module_of(variants()[name].replaced if name else {})))
        self.concerned = cache(self._concerned)
        self.computed = cache(self._computed)

    def expected(self, place: Place) -> dict[str, Value]:
        """Returns the expected results of a stage, or none if the case lacks the stage."""
        id, name = place
        return next((stage.outputs for stage in self.cases[id].stages if stage.name == name), {})

    def job(self, place: Place) -> Job:
        """Returns the job that runs a stage of the case."""
        return job_of(self.cases[place[0]], place[1])

    def compares(self, place: Place) -> bool:
        """Whether to run variants on a stage. Skips stages without results, and training, which takes seconds."""
        return bool(self.expected(place)) and not function(self.job(place).stage.call).pooled

    def _concerned(self, place: Place) -> list[str]:
        """Returns the variants that replace a function or router called by the stage."""
        names = called(self.job(place))
        return [variant.name for variant in variants().values() if variant.replaced.keys() & names]

    def _computed(self, place: Place, name: str) -> Values:
        """Returns the results of a variant, or of the reference backend if the name is "". A failed call has no results."""
        with np.errstate(all="ignore"):  # some variants compute NaN
            (values,) = execute(self.target(name), [self.job(place)], "eager")
        return {} if isinstance(values, Exception) else values

    def differs(self, place: Place, name: str, dtype: Dtype) -> bool:
        """Whether a variant's results of a stage differ from the expected results by more than `SLACK` tolerances."""
        values, call = self.computed(place, name), self.job(place).stage.call
        return any(
            result not in values or compare(value, values[result], precision(call, result, dtype)).fraction > SLACK
            for result, value in self.expected(place).items()
        )

    def agrees(self, place: Place, name: str, returned: Values, dtype: Dtype) -> bool:
        """Whether the target's results of a stage equal the variant's results."""
        return self.equals(place, self.computed(place, name), returned, dtype)

    def equals(self, place: Place, values: Values, returned: Values, dtype: Dtype) -> bool:
        """Whether the target's results of a stage equal these values instead of the expected ones."""
        expected = self.expected(place)
        shared = [result for result in expected if result in returned]
        if not shared or not values.keys() >= set(shared):
            return False
        call = self.job(place).stage.call
        bounds = {result: precision(call, result, dtype) for result in shared}
        away = max(_distance(expected[result], values[result], returned[result], bounds[result]) for result in shared)
        wrong = max(compare(expected[result], returned[result], bounds[result]).fraction for result in shared)
        if wrong <= 1:  # the returned results are correct, so only missing results can match
            return values.keys() == returned.keys() != expected.keys()
        return away <= min(SLACK, wrong / 2)


def _explained(known: Known, group: Sequence[CaseResult], dtype: Dtype) -> list[tuple[str, int, int]]:
    """Returns tuples (variant, number of stages in which variant and target agree, number of stages that fail on either of them)."""
    failed = {place: result.returned[place[1]] for result in group for place in _places(known, result, "fail")}
    raised = [(r.id, o.stage) for r in group for o in r.outcomes if o.state == "error"]
    raised = [place for place in raised if known.compares(place)]
    passed = [place for result in group for place in _places(known, result, "pass")]
    agree: dict[str, set[Place]] = {}
    for place, returned in failed.items():
        for name in [] if known.agrees(place, "", returned, dtype) else known.concerned(place):
            if known.agrees(place, name, returned, dtype):
                agree.setdefault(name, set()).add(place)

    def denied(place: Place, name: str) -> bool:
        return name in known.concerned(place) and known.differs(place, name, dtype)

    counts = {name: len(failed) + sum(bool(known.computed(place, name)) for place in raised) for name in agree}
    counted = [
        (name, len(places), counts[name] + sum(denied(place, name) for place in passed))
        for name, places in agree.items()
        if len(places) >= ENOUGH * counts[name]
    ]
    full = [(name, agreed, of) for name, agreed, of in counted if agreed == of]
    parts = sorted((one for one in counted if one[1] >= ENOUGH * one[2]), key=lambda one: -one[1] / one[2])
    return full or list(_parts(parts, agree))


def _parts(counted: Sequence[tuple[str, int, int]], agree: dict[str, set[Place]]) -> Iterator[tuple[str, int, int]]:
    """Yields the likeliest variants first; each explains a stage that no earlier variant explains."""
    explained: set[Place] = set()
    for name, agreed, of in counted:
        if agree[name] - explained:
            yield name, agreed, of
            explained |= agree[name]


def _places(known: Known, result: CaseResult, state: str) -> list[Place]:
    """If `state` is "pass", returns the stages of a case whose results all pass. Otherwise returns the stages whose results fail."""
    states: dict[str, set[str]] = {}
    for outcome in result.outcomes:
        states.setdefault(outcome.stage.split("/")[0], set()).add(outcome.state)
    return [
        (result.id, stage)
        for stage, seen in states.items()
        if known.compares((result.id, stage))
        if (seen == {"pass"} if state == "pass" else stage in result.returned)
    ]


def _distance(value: Value, want: Any, got: Any, dtype: Dtype) -> float:
    """Returns the distance between a target's and a variant's result, in tolerances whose scale is at least the variant's magnitude.

    Where the variant computes NaN or infinity, the target must compute NaN or infinity.
    """
    want, got = np.asarray(want), np.asarray(got)
    if value.kind != "float" or want.shape != got.shape or got.dtype.kind != "f":
        return compare(Value(want, value.axes, value.kind), got, dtype).fraction
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    want, got = np.where(finite, want, 0), np.where(finite, got, 0)
    scale = np.abs(value.array) if isinstance(value.scale, str) else value.scale
    scale = np.maximum(scale if scale.shape == want.shape else np.max(scale, initial=0.0), np.abs(want))
    return compare(Value(want, value.axes, "float", scale, value.constant), got, dtype).fraction
