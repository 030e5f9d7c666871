"""What came of a case: the outcome of each of its stages and results, and the state that they make together."""

import math
from dataclasses import dataclass, field
from typing import Any

from moespec.conformance.format import Value
from moespec.conformance.judge import Lane, compare

__all__ = ["COLUMNS", "FAILED", "STATES", "CaseResult", "Convention", "NotOfferedError", "Outcome", "judged"]

COLUMNS = {
    "forward": ("value", "overflow", "degenerate"),
    "ties": ("tie", "near_tie"),
    "gradients": ("gradient",),
    "negatives": ("negative",),
    "trajectory": ("trajectory",),
}
"""The columns of the matrix and the classes of cases in them."""

STATES = {
    "fail": "what was computed is not what is expected",
    "error": "an exception was raised, or what was returned is no result",
    "waived": "it fails, and a waiver gives a reason",
    "not implemented": "the target does not have it",
    "inconclusive": "a choice is too close to a tie for the dtype",
    "unchecked": "an optional check that the target does not make",
    "pass": "within the bound",
}
"""What can come of a case and what it means; the state that decides comes first."""
FAILED = ("fail", "error")
"""The states of a failure; every other state but `pass` is a skip."""
ORDER = tuple(STATES)


class NotOfferedError(Exception):
    """The target says that it does not do what it was called for."""


@dataclass(frozen=True)
class Outcome:
    """What came of one stage, or of one of its results."""

    stage: str
    state: str
    share: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Convention:
    """A known deviation that a target's results equal, in one algorithm, lane and mode.

    mutant, computes, ledger, who: of the mutant (see `mutants`). agree: the stages in which the results of the target
    are those of the mutant, of: those that fail or would fail under the mutant. Where agree < of, it explains a part.
    """

    algorithm: str
    lane: str
    mode: str
    mutant: str
    computes: str
    ledger: str
    who: str
    agree: int
    of: int

    @property
    def text(self) -> str:
        """A sentence for the report."""
        notes = [f"in {self.agree} of {self.of} stages"]
        notes += [f"ledger {self.ledger}"] if self.ledger else []
        notes += [f"as in {self.who}"] if self.who else []
        return f"{self.mutant}: {self.computes} ({'; '.join(notes)})"


@dataclass
class CaseResult:
    """What came of one case in one lane and mode.

    returned: what the target returned for each stage that fails, by name. seconds: the time that the cases of its
    algorithm took together, in equal parts, since they are compiled together.
    """

    id: str
    algorithm: str
    kind: str
    lane: str
    mode: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    returned: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def state(self) -> str:
        """The state that decides."""
        return min((outcome.state for outcome in self.outcomes), key=ORDER.index, default="error")

    @property
    def share(self) -> float:
        """The largest share of a tolerance that was used, of finite ones."""
        return max((o.share for o in self.outcomes if math.isfinite(o.share)), default=0.0)

    @property
    def first(self) -> Outcome:
        """The first outcome that decides: for a failure, where the target first differs or raises."""
        deciding = FAILED if self.state in FAILED else (self.state,)
        return next(outcome for outcome in self.outcomes if outcome.state in deciding)


def judged(stage: str, expected: dict[str, Value], found: Any, lane: Lane, sure: bool) -> list[Outcome]:
    """The outcome for each result of a stage. Where a choice is not certain, no comparison decides."""
    if isinstance(found, NotOfferedError):
        return [Outcome(stage, "not implemented", 0.0, str(found))]
    if isinstance(found, Exception):
        return [Outcome(stage, "error", math.inf, f"{type(found).__name__}: {str(found)[:400]}")]
    outcomes = []
    for name, value in expected.items():
        label = f"{stage}/{name}"
        if name not in found:
            outcomes.append(Outcome(label, "fail", math.inf, "missing"))
        elif not sure:
            outcomes.append(Outcome(label, "inconclusive", 0.0, f"a choice is too close to a tie for {lane.name}"))
        else:
            verdict = compare(value, found[name], lane)
            outcomes.append(Outcome(label, "pass" if verdict.passed else "fail", verdict.share, verdict.message))
    for name in sorted(found.keys() - expected.keys()):
        outcomes.append(Outcome(f"{stage}/{name}", "fail", math.inf, "a result that is not expected"))
    return outcomes
