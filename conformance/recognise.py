"""Which known deviation a target's results equal: what a stranger's router computes, where it is not the specification.

For each stage that fails, the mutants are run on what the stage was given. One of them agrees where all that the target
returned is what it computes, within a few bounds of the lane, and that is not the expected result. A stage that the
target passes and the mutant fails is one where they do not agree.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from tqdm import tqdm

from moespec.conformance.execute import execute, job_of
from moespec.conformance.format import Case, Value
from moespec.conformance.judge import LANES, Lane, compare
from moespec.conformance.mutants import MUTANTS, build
from moespec.conformance.mutation import LANE, called
from moespec.conformance.program import Values
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.results import CaseResult, Convention
from moespec.conformance.target import Target

__all__ = ["Known", "recognise"]

ENOUGH = 0.25
"""A mutant that explains a part is named if it agrees in at least this share of the stages that it or the target fails."""

SLACK = 4
"""How many bounds of the judge a target may be away from a mutant, whose own scale is not known; what is expected must be
twice as far. A mutant fails a stage that the target passes if it is further off than this."""

Place = tuple[str, str]
"""A case by id, and a stage of it."""


def recognise(results: Sequence[CaseResult], known: "Known") -> list[Convention]:
    """The mutants that a target agrees with, algorithm by algorithm in each lane and mode.

    Those that agree wherever the target or they differ from the specification, all of them if several do; else those
    that together explain a part of the failures, the largest part first.
    """
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for result in results:
        groups.setdefault((result.algorithm, result.lane, result.mode), []).append(result)
    failing = {key: group for key, group in groups.items() if any(result.returned for result in group)}
    found = []
    for (algorithm, lane, mode), group in tqdm(failing.items(), desc="known deviations", unit="part", disable=None):
        for mutant, agree, of in _explained(known, group, LANES[lane]):
            m = MUTANTS[mutant]
            found.append(Convention(algorithm, lane, mode, m.name, m.computes, m.ledger, m.who, agree, of))
    return found


class Known:
    """What the mutants compute for the stages of cases. Each is run once, when it is asked for, whatever the lane."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = {case.id: case for case in cases}
        self.target = cache(lambda name: Target(name, LANE, build(MUTANTS[name].replaced)))
        self.concerned = cache(self._concerned)
        self.computed = cache(self._computed)

    def expected(self, place: Place) -> dict[str, Value]:
        """The expected results of a stage; of none that the case has not."""
        id, name = place
        return next((record.outputs for record in self.cases[id].stages if record.name == name), {})

    def _concerned(self, place: Place) -> list[str]:
        """The mutants that replace something that a stage calls."""
        names = called(job_of(self.cases[place[0]], place[1]))
        return [mutant.name for mutant in MUTANTS.values() if mutant.replaced.keys() & names]

    def _computed(self, place: Place, name: str) -> Values:
        """The results of a mutant; none where it raises an error."""
        with np.errstate(all="ignore"):  # those that compute with NaN
            (values,) = execute(self.target(name), [job_of(self.cases[place[0]], place[1])], "eager")
        return {} if isinstance(values, Exception) else values

    def differs(self, place: Place, name: str, lane: Lane) -> bool:
        """Whether a stage fails under a mutant, by far."""
        values = self.computed(place, name)
        return any(
            result not in values or compare(value, values[result], lane).share > SLACK
            for result, value in self.expected(place).items()
        )

    def agrees(self, place: Place, name: str, returned: Values, lane: Lane) -> bool:
        """Whether all that was returned, and is expected, is what a mutant computes."""
        values, expected = self.computed(place, name), self.expected(place)
        shared = [result for result in expected if result in returned]
        if not shared or not values.keys() >= set(shared):
            return False
        away = max(_distance(expected[result], values[result], returned[result], lane) for result in shared)
        wrong = max(compare(expected[result], returned[result], lane).share for result in shared)
        return away <= min(SLACK, wrong / 2)


def _explained(known: Known, group: Sequence[CaseResult], lane: Lane) -> list[tuple[str, int, int]]:
    """Mutants, the number of stages in which they agree, and of how many."""
    failed = {place: result.returned[place[1]] for result in group for place in _places(known, result, "fail")}
    passed = [place for result in group for place in _places(known, result, "pass")]
    agree: dict[str, set[Place]] = {}
    for place, returned in failed.items():
        for name in known.concerned(place):
            if known.agrees(place, name, returned, lane):
                agree.setdefault(name, set()).add(place)
    found = [
        (name, len(places), len(failed) + _denied(known, name, passed, lane))
        for name, places in agree.items()
        if len(places) >= ENOUGH * len(failed)
    ]
    full = [(name, agreed, of) for name, agreed, of in found if agreed == of]
    parts = sorted((one for one in found if one[1] >= ENOUGH * one[2]), key=lambda one: -one[1] / one[2])
    return full or list(_parts(parts, agree))


def _denied(known: Known, name: str, passed: Sequence[Place], lane: Lane) -> int:
    """How many of the stages that the target passes would fail under a mutant."""
    return sum(name in known.concerned(place) and known.differs(place, name, lane) for place in passed)


def _parts(found: Sequence[tuple[str, int, int]], agree: dict[str, set[Place]]) -> Iterator[tuple[str, int, int]]:
    """Of the mutants, the likeliest first, those that explain something that none before them does."""
    explained: set[Place] = set()
    for name, agreed, of in found:
        if agree[name] - explained:
            yield name, agreed, of
            explained |= agree[name]


def _places(known: Known, result: CaseResult, state: str) -> list[Place]:
    """The stages of a case all of whose outcomes pass, or of which some fail and the target returned something.

    Not those of training, which take seconds.
    """
    states: dict[str, set[str]] = {}
    for outcome in result.outcomes:
        states.setdefault(outcome.stage.split("/")[0], set()).add(outcome.state)
    program = PROGRAMS[result.algorithm]
    return [
        (result.id, stage)
        for stage, found in states.items()
        if stage in program and not program[stage].pooled and known.expected((result.id, stage))
        if (found == {"pass"} if state == "pass" else stage in result.returned)
    ]


def _distance(value: Value, want: Any, got: Any, lane: Lane) -> float:
    """How many bounds a result is away from that of a mutant, by the larger of its scale and the size of the result.

    Where the mutant computes NaN or infinity, so must the target, but no matter which.
    """
    want, got = np.asarray(want), np.asarray(got)
    if value.kind == "int" or want.shape != got.shape or got.dtype.kind != "f":
        return compare(Value(want, value.axes, value.kind), got, lane).share
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    want, got = np.where(finite, want, 0), np.where(finite, got, 0)
    scale = np.abs(value.array) if isinstance(value.scale, str) else value.scale
    scale = np.maximum(scale if scale.shape == want.shape else np.max(scale, initial=0.0), np.abs(want))
    return compare(Value(want, value.axes, "float", scale, value.constant), got, lane).share
