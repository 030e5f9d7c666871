"""Which known deviation a target's results equal: what a stranger's router computes, where it is not the specification.

For each stage that fails, the mutants are run on what the stage was given. One of them agrees where all that the target
returned equals what it computes, within the tolerance of the lane, and that is not the expected result. A mutant under
which a stage would fail that the target passes is none that the target computes.
"""

from collections.abc import Iterator, Sequence
from functools import cache

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
"""A mutant that explains a part of the failures is named if it explains at least this share of the stages that fail."""

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
        """Whether a stage fails under a mutant."""
        values = self.computed(place, name)
        return any(
            result not in values or not compare(value, values[result], lane).passed
            for result, value in self.expected(place).items()
        )

    def agrees(self, place: Place, name: str, returned: Values, lane: Lane) -> bool:
        """Whether all that was returned, and is expected, is what a mutant computes."""
        values, expected = self.computed(place, name), self.expected(place)
        shared = [result for result in expected if result in returned]
        return bool(shared) and all(
            result in values and _equal(expected[result], values[result], np.asarray(returned[result]), lane)
            for result in shared
        )


def _explained(known: Known, group: Sequence[CaseResult], lane: Lane) -> list[tuple[str, int, int]]:
    """Mutants, the number of stages in which they agree, and of how many."""
    failed = {place: result.returned[place[1]] for result in group for place in _places(known, result, "fail")}
    passed = [place for result in group for place in _places(known, result, "pass")]
    agree: dict[str, set[Place]] = {}
    for place, returned in failed.items():
        for name in known.concerned(place):
            if known.differs(place, name, lane) and known.agrees(place, name, returned, lane):
                agree.setdefault(name, set()).add(place)
    possible = {
        name: places
        for name, places in agree.items()
        if len(places) >= ENOUGH * len(failed)
        and not any(name in known.concerned(place) and known.differs(place, name, lane) for place in passed)
    }
    full = [(name, len(failed), len(failed)) for name, places in possible.items() if len(places) == len(failed)]
    return full or list(_parts(possible, len(failed)))


def _parts(possible: dict[str, set[Place]], of: int) -> Iterator[tuple[str, int, int]]:
    """The mutant that explains most, then the one that explains most of what is left, ..."""
    left = set().union(*possible.values())
    while left:
        name = max(possible, key=lambda name: len(possible[name] & left))
        yield name, len(possible[name]), of
        left -= possible[name]


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


def _equal(value: Value, want: np.ndarray, got: np.ndarray, lane: Lane) -> bool:
    """Whether a result equals that of a mutant, by the judge's rule with the larger of the two scales there are.

    Where the mutant computes NaN or infinity, so must the target, but no matter which.
    """
    if value.kind == "int" or want.shape != got.shape or got.dtype.kind != "f":
        return compare(Value(want, value.axes, value.kind), got, lane).passed
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return False
    want, got = np.where(finite, want, 0), np.where(finite, got, 0)
    scale = np.abs(value.array) if isinstance(value.scale, str) else value.scale
    scale = np.maximum(scale if scale.shape == want.shape else np.max(scale, initial=0.0), np.abs(want))
    return compare(Value(want, value.axes, "float", scale, value.constant), got, lane).passed
