"""`report.json`: everything that came of one run or of checked files, from which matrix, page and badge are made.

`reading.read` reads it again.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from moespec.conformance.check.results import COLUMNS, FAILED, CaseResult, Match, Table
from moespec.conformance.compare import Outcome
from moespec.conformance.suite import is_installed
from moespec.version import version

__all__ = [
    *("INTERFACES", "SCHEMA", "Report", "ReportError", "Unsupported", "column_of", "counts", "distinct", "packed"),
    *("unpacked", "write", "write_text"),
]

SCHEMA = 2
INTERFACES = {"target": r"\w+(\.\w+)*", "adapter": r"\w+(\.\w+)*(:\w+(\.\w+)*)?", "files": r"[^\x00-\x1f\x7f]+"}
"""Each with the form of a name of what was checked: a module, an object in one, or a folder."""


class ReportError(Exception):
    """A file is not a report of this suite; the message names it."""


@dataclass(frozen=True)
class Unsupported:
    """A dtype that a target does not support, with its reason and the number of cases that were left out."""

    dtype: str
    reason: str
    cases: int


@dataclass(frozen=True)
class Report:
    """What came of one target.

    interface: one of `INTERFACES`; target: the name of what was checked. suite: the sha256 of `suite.json`. problems:
    sentences about what is wrong besides the cases, such as a waiver that waives nothing; each counts as a failure.
    matches: the known variants that failures equal. seed: of fresh cases, which were not those of the vectors, and size:
    theirs. repeat: whether everything was computed twice. claims: the version of the specification that the target claims
    to follow, or an empty string.
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

    @property
    def note(self) -> str:
        """What is to be said of the version that the target claims, if it is not the installed one, or an empty string."""
        if not self.claims or is_installed(self.claims):
            return ""
        return f"{self.target} claims to follow moespec {self.claims}, and was checked with {version()}"

    @property
    def remarks(self) -> list[str]:
        """What is to be said besides its cases."""
        lacking = [f"{u.dtype} not supported ({u.cases} cases): {u.reason}" for u in self.unsupported]
        return [*lacking, *self.problems, *([self.note] if self.note else [])]

    @property
    def title(self) -> str:
        """What was checked, and if with fresh cases of which seed."""
        return self.target if self.seed is None else f"{self.target} ({self.made})"

    @property
    def made(self) -> str:
        """Of which seed, and of what size, fresh cases are."""
        return f"fresh, seed {self.seed}" + ("" if self.size == "small" else f", {self.size}")

    def matches_of(self, result: CaseResult) -> list[Match]:
        """The known variants that the failures of an algorithm equal, in the dtype and mode of a result."""
        place = (result.algorithm, result.dtype, result.mode)
        return [match for match in self.matches if (match.algorithm, match.dtype, match.mode) == place]

    @property
    def not_differentiated(self) -> list[str]:
        """The algorithms of which an adapter computes the layer, and whose gradient was not compared in any dtype."""
        if self.interface != "adapter":
            return []
        skipped = ("not implemented", "inconclusive")
        outcomes = [(r.algorithm, o) for r in self.results for o in r.outcomes if o.state not in skipped]
        seen = {algorithm for algorithm, o in outcomes if o.stage.partition("/")[0] == "gradient"}
        return sorted({algorithm for algorithm, _ in outcomes} - seen)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Passed, failed, skipped."""
        passed, failed, skipped = counts(self.results)
        return passed, failed + len(self.problems), skipped + sum(each.cases for each in self.unsupported)


def counts(results: Iterable[CaseResult]) -> tuple[int, int, int]:
    """Passed, failed, skipped: what is neither passed nor failed is skipped, never passed."""
    states = [result.state for result in results]
    passed, failed = states.count("pass"), sum(state in FAILED for state in states)
    return passed, failed, len(states) - passed - failed


def column_of(kind: str) -> str:
    """The column of a class of cases."""
    return next(column for column, kinds in COLUMNS.items() if kind in kinds)


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(report: Report, path: Path) -> None:
    """Write the report as JSON with sorted keys."""
    own = ("interface", "target", "seed", "size", "repeat", "claims", "suite", "problems")
    content = {
        "schema": SCHEMA,
        "version": version(),
        **{name: getattr(report, name) for name in own},
        **dict(zip(("passed", "failed", "skipped"), report.counts, strict=True)),
        "unsupported": [vars(each) for each in report.unsupported],
        "variants": [vars(match) for match in report.matches],
        "cases": [
            {
                **{name: getattr(result, name) for name in ("id", "dtype", "mode", "state", "fraction", "explanation")},
                "column": column_of(result.kind),
                "seconds": round(result.seconds, 4),
                "outcomes": [
                    {**vars(o), "fraction": o.fraction if math.isfinite(o.fraction) else None} for o in result.outcomes
                ],
                "table": None if result.table is None else vars(result.table),
            }
            for result in report.results
        ],
    }
    write_text(path, json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n")


def packed(report: Report) -> str:
    """The report as text, for another process of the same run; what a target returned is left out."""
    results = [replace(result, returned={}) for result in report.results]
    return json.dumps(asdict(replace(report, results=results)))


def unpacked(text: str) -> Report:
    """The inverse of `packed`."""
    content = json.loads(text)
    for each in content["results"]:
        each["outcomes"] = [Outcome(**outcome) for outcome in each["outcomes"]]
        each["table"] = each["table"] and Table(**each["table"])
    kinds = {"results": CaseResult, "unsupported": Unsupported, "matches": Match}
    return Report(**content | {name: [kind(**each) for each in content[name]] for name, kind in kinds.items()})


def distinct(reports: Mapping[Path, Report]) -> list[Report]:
    """The reports of several files, of which no two say something about one target's case, dtype and mode.

    Raises ReportError for the first that do.
    """
    owner: dict[tuple[str, ...], Path] = {}
    for path, report in reports.items():
        for result in report.results:
            key = (report.interface, report.title, result.id, result.dtype, result.mode)
            if owner.setdefault(key, path) != path:
                place = f"{report.title}: {result.id} {result.dtype} {result.mode}"
                raise ReportError(f"{path}: {place} is in {owner[key]} too")
    return list(reports.values())
