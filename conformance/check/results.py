"""What came of a case: the state that the outcomes of its comparisons make together."""

import math
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from moespec.conformance.compare import Outcome

__all__ = ["COLUMNS", "FAILED", "STATES", "CaseResult", "Match", "Table"]

COLUMNS = {
    "forward": ("value", "overflow", "degenerate"),
    "ties": ("tie", "near_tie"),
    "gradients": ("gradient",),
    "errors": ("negative",),
    "trajectory": ("trajectory",),
}
"""The columns of the matrix and the classes of cases in them."""

STATES = {
    "fail": "what was computed is not what is expected",
    "error": "an exception was raised, or what was returned is not a result",
    "reordered": "what was computed differs only in the order of equal scores",
    "waived": "it fails, and a waiver gives a reason",
    "not implemented": "the target does not have it",
    "inconclusive": "a choice is too close to a tie for the dtype",
    "unchecked": "an optional check that the target does not make",
    "pass": "within the tolerance",
}
"""What can come of a case and what it means; the state that decides comes first."""
FAILED = ("fail", "error", "reordered")
"""The states of a failure; every other state but `pass` is a skip."""
ORDER = tuple(STATES)


@dataclass(frozen=True)
class Match:
    """A known variant that a target's results equal, in one algorithm, dtype and mode.

    variant, computes, ledger, who: of the variant. agree: the stages in which the results of the target are those of
    the variant, of: those that fail or would fail under the variant. Where agree < of, it explains a part.
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
        """The entry of the ledger that the variant answers differently; "" if there is none."""
        return self.ledger.rstrip(ascii_lowercase)

    @property
    def text(self) -> str:
        """A sentence for the report, after "it"."""
        verb = "equals" if self.agree == self.of else "agrees in part with"
        notes = [f"in {self.agree} of {self.of} stages"]
        notes += [f"ledger {self.ledger}"] if self.ledger else []
        notes += [f"as in {self.who}"] if self.who else []
        return f"{verb} the known variant {self.variant}: {self.computes} ({'; '.join(notes)})"


@dataclass(frozen=True)
class Table:
    """A small result that is wrong, as text: matrices of what is expected and of what was computed.

    name: of the stage and the result. wrong: which entries are outside of their tolerance.
    """

    name: str
    expected: list[list[list[str]]]
    got: list[list[list[str]]]
    wrong: list[list[list[bool]]]


@dataclass
class CaseResult:
    """What came of one case in one dtype and mode.

    returned: what the target returned for each stage that fails, by name. seconds: the time that the cases of its
    algorithm took together, in equal parts, since they are compiled together. table: the first result that is wrong, if
    it is small. explanation: of a failure, what is right, what is wrong, and how; see `explain.py`.
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
        """The state that decides."""
        return min((outcome.state for outcome in self.outcomes), key=ORDER.index, default="error")

    @property
    def fraction(self) -> float:
        """The largest fraction of a tolerance that was used, of finite ones."""
        return max((o.fraction for o in self.outcomes if math.isfinite(o.fraction)), default=0.0)

    @property
    def first(self) -> Outcome:
        """The first outcome that decides: for a failure, where the target first differs or raises."""
        deciding = FAILED if self.state in FAILED else (self.state,)
        return next(outcome for outcome in self.outcomes if outcome.state in deciding)
