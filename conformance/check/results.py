"""Results of a case, and reports of all cases in a run."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from typing import Any

from moespec.conformance.compare import Outcome
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.suite import CLASSES, is_installed
from moespec.version import version

__all__ = [
    *("COLUMNS", "FAILED", "STATES", "CaseResult", "Match", "Report", "Table", "Unsupported", "counts", "covered"),
    *("unpacked", "with_other_runs"),
]

COLUMNS = {
    "forward": ("value", "overflow", "degenerate"),
    "ties": ("tie", "near_tie"),
    "gradients": ("gradient",),
    "errors": ("negative",),
    "trajectory": ("trajectory",),
}
"""Maps each column of the result matrix to the classes of cases that the column covers."""

STATES = {
    "fail": "a result differs from the expected one",
    "error": "the target raised an exception or returned no valid result",
    "reordered": "a result differs only in tie-breaking",
    "waived": "a known failure, for which a waiver gives the reason",
    "not implemented": "the target lacks the function or option",
    "inconclusive": "a choice is too close to a tie for the dtype",
    "unchecked": "an optional check, skipped because the target does not make it",
    "pass": "all results are within the tolerance",
}
"""The states of a case and their meanings, in order of precedence."""
FAILED = ("fail", "error", "reordered")
"""The states that count as failures. Every other state except `pass` is a skip."""
ORDER = tuple(STATES)
EAGER = {"strided": "correct on contiguous arrays, wrong on strided ones", "compiled": "correct eager, wrong compiled"}
"""Maps each mode to the explanation of a case that fails in this mode but passes in eager mode."""
FINER = {"float64": (), "float32": ("float64",)} | dict.fromkeys(("bfloat16", "float16"), ("float32", "float64"))
"""The finer dtypes of each dtype, nearest first."""


@dataclass(frozen=True)
class Match:
    """A known variant that matches a target's results, in one algorithm, dtype and mode.

    variant, computes, ledger, who: the variant's fields. agree: the number of stages in which the target agrees with the variant.
    of: the number of stages that fail on the target or the variant. If agree < of, the variant explains only some failures.
    """

    algorithm: str
    dtype: str
    mode: str
    variant: str
    computes: str
    ledger: str
    who: str
    agree: int
    of: int

    @property
    def question(self) -> str:
        """The ledger question that the variant answers differently from the specification, or ""."""
        return self.ledger.rstrip(ascii_lowercase)

    @property
    def text(self) -> str:
        """The part of a report sentence that follows the subject "it"."""
        verb = "equals" if self.agree == self.of else "agrees in part with"
        notes = [f"in {self.agree} of {self.of} stages"]
        notes += [f"ledger {self.ledger}"] if self.ledger else []
        notes += [f"as in {self.who}"] if self.who else []
        return f"{verb} the known variant {self.variant}: {self.computes} ({'; '.join(notes)})"


@dataclass(frozen=True)
class Table:
    """A small wrong result as text: matrices of expected and computed values.

    name: the names of the stage and its result. wrong: a mask of the entries outside their tolerance.
    """

    name: str
    expected: list[list[list[str]]]
    got: list[list[list[str]]]
    wrong: list[list[list[bool]]]


@dataclass
class CaseResult:
    """The result of one case in one dtype and mode.

    returned: the target's results for each failing stage, by name. seconds: the mean time per case of the algorithm.
    table: the first wrong result, if small.
    explanation: for a failure, the correct and wrong results and a description of the errors; see `explain.py`.
    """

    id: str
    algorithm: str
    kind: str
    dtype: str
    mode: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    returned: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    table: Table | None = field(default=None, repr=False, compare=False)
    explanation: str = ""

    @property
    def state(self) -> str:
        """The state of the case, which is the first state in `STATES` that an outcome has."""
        return min((outcome.state for outcome in self.outcomes), key=ORDER.index, default="error")

    @property
    def fraction(self) -> float:
        """The largest finite fraction of the tolerance that a result of the case uses."""
        return max((o.fraction for o in self.outcomes if math.isfinite(o.fraction)), default=0.0)

    @property
    def first(self) -> Outcome:
        """In a failed case, the first failed outcome. In another case, the first outcome with the state of the case."""
        deciding = FAILED if self.state in FAILED else (self.state,)
        return next(outcome for outcome in self.outcomes if outcome.state in deciding)


@dataclass(frozen=True)
class Unsupported:
    """A dtype that a target does not support, with the reason and the number of cases not run."""

    dtype: str
    reason: str
    cases: int


@dataclass(frozen=True)
class Report:
    """The results of one target.

    interface: "target", "adapter" or "files". target: the name of the checked module, object or folder. suite: the sha256 of `suite.json`.
    problems: sentences about problems outside the cases, each counted as a failure. matches: the known variants that match failures.
    seed, size: the seed and size of fresh cases, if these replace the vectors. repeat: whether each stage was run twice.
    claims: the version of the specification that the target claims to follow, or "". left_out: the `--class` word of each case not run.
    called: the functions of moespec that the target was observed to call.
    """

    interface: str
    target: str
    suite: str
    results: list[CaseResult]
    unsupported: list[Unsupported] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    seed: int | None = None
    claims: str = ""
    size: str = "small"
    repeat: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Notes that the claimed version differs from the installed one, or that the target calls moespec."""
        notes = []
        if self.claims and not is_installed(self.claims):
            notes.append(f"{self.target} claims to follow moespec {self.claims} but was checked with {version()}")
        if self.called:
            more = f" and {len(self.called) - 3} more" if len(self.called) > 3 else ""
            notes.append(f"{self.target} calls {', '.join(self.called[:3])}{more}; those results come from moespec")
        return notes

    @property
    def remarks(self) -> list[str]:
        """The unsupported dtypes, the problems outside the cases, and the notes, as sentences."""
        lacking = [f"{u.dtype} not supported ({u.cases} cases): {u.reason}" for u in self.unsupported]
        return [*lacking, *self.problems, *self.notes]

    @property
    def title(self) -> str:
        """The name of the target and, for fresh cases, the seed and size."""
        return self.target if self.seed is None else f"{self.target} ({self.made})"

    @property
    def made(self) -> str:
        """The seed and size of fresh cases, in words."""
        return f"fresh, seed {self.seed}" + ("" if self.size == "small" else f", {self.size}")

    @property
    def citation(self) -> str:
        """A citable sentence that states the algorithms, the suite, and the numbers of passed cases and of all cases per dtype and mode."""
        groups: dict[str, list[CaseResult]] = {}
        for result in self.results:
            groups.setdefault(f"{result.dtype} {result.mode}", []).append(result)
        parts = [f"{counts(own)[0]} of {len(own)} cases ({place})" for place, own in groups.items()]
        parts += [f"0 of {each.cases} ({each.dtype}, not supported)" for each in self.unsupported]
        names = sorted({result.algorithm for result in self.results})
        which = [f"{name} revision {ALGORITHMS[name].revision}" for name in names]
        suite = f"suite {self.suite[:8]}, {', '.join(which) if len(which) < 6 else f'{len(which)} algorithms'}"
        return f"{self.title} passes {', '.join(parts) or 'no case'} of moespec {version()} conformance; {suite}"

    def matches_of(self, result: CaseResult) -> list[Match]:
        """Returns the known variants that match failures of a result's algorithm in its dtype and mode."""
        place = (result.algorithm, result.dtype, result.mode)
        return [match for match in self.matches if (match.algorithm, match.dtype, match.mode) == place]

    @property
    def not_differentiated(self) -> list[str]:
        """The algorithms whose layer an adapter computes but whose gradient was not compared in any dtype."""
        if self.interface != "adapter":
            return []
        skipped = ("not implemented", "inconclusive")
        outcomes = [(r.algorithm, o) for r in self.results for o in r.outcomes if o.state not in skipped]
        seen = {algorithm for algorithm, o in outcomes if o.stage.partition("/")[0] == "gradient"}
        return sorted({algorithm for algorithm, _ in outcomes} - seen)

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of passed, failed and skipped cases."""
        passed, failed, skipped = counts(self.results)
        return passed, failed + len(self.problems), skipped + sum(each.cases for each in self.unsupported)


def counts(results: Iterable[CaseResult]) -> tuple[int, int, int]:
    """Returns the numbers of passed, failed and skipped cases. A case that neither passed nor failed counts as skipped."""
    states = [result.state for result in results]
    passed, failed = states.count("pass"), sum(state in FAILED for state in states)
    return passed, failed, len(states) - passed - failed


def covered(reports: Iterable[Report]) -> tuple[int, int, Counter[str]]:
    """Returns the number of passed cases, the number of all cases, and the numbers of cases not compared, by `--class` word.

    A passed case passes in every dtype and mode in which the case is compared.
    """
    words = {kind: word for word, kinds in CLASSES.items() for kind in kinds}
    cases: dict[tuple[str, str, str], tuple[str, set[str]]] = {}
    for report in reports:
        ran = [(result.id, words[result.kind], {result.state}) for result in report.results]
        for id, word, states in (*ran, *((id, word, set()) for id, word in report.left_out.items())):
            cases.setdefault((report.interface, report.title, id), (word, set()))[1].update(states)
    passed = sum("pass" in states and not states & {*FAILED, "waived"} for _, states in cases.values())
    return passed, len(cases), Counter(word for word, states in cases.values() if states <= {"not implemented"})


def with_other_runs(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Adds a note to the explanation of a failure if the same case passes in eager mode or in a finer dtype."""
    passed = {(r.id, r.dtype, r.mode) for r in results if r.state == "pass"}

    def noted(r: CaseResult) -> CaseResult:
        notes = [text for mode, text in EAGER.items() if r.mode == mode and (r.id, r.dtype, "eager") in passed]
        notes += [
            f"correct in {dtype}, wrong in {r.dtype}" for dtype in FINER[r.dtype] if (r.id, dtype, r.mode) in passed
        ]
        explained = "; ".join([r.explanation or f"{r.first.stage} wrong", *notes[:1]])
        return replace(r, explanation=explained) if notes and r.state in FAILED else r

    return [noted(result) for result in results]


def unpacked(content: dict[str, Any]) -> Report:
    """Returns a report from its `asdict`, which another process of the same run has sent as JSON."""
    for each in content["results"]:
        each["outcomes"] = [Outcome(**outcome) for outcome in each["outcomes"]]
        each["table"] = each["table"] and Table(**each["table"])
    kinds = {"results": CaseResult, "unsupported": Unsupported, "matches": Match}
    return Report(**content | {name: [kind(**each) for each in content[name]] for name, kind in kinds.items()})
