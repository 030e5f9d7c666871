"""`report.json`: everything that came of one run or of checked files, from which matrix, page and badge are made.

A report may come from a third party: `read` accepts only what `run --report` and `check --report` write for the vectors
at hand, and what it read is text to be escaped.
"""

import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moespec.conformance.engine import files
from moespec.conformance.engine.compare import ALL_DTYPES, Outcome
from moespec.conformance.engine.format import Case
from moespec.conformance.engine.large import SIZES
from moespec.conformance.engine.modes import is_mode
from moespec.conformance.engine.rows import ALGORITHMS
from moespec.conformance.engine.suite import is_installed
from moespec.conformance.report.results import COLUMNS, FAILED, STATES, CaseResult, Match, Table
from moespec.conformance.report.tables import LARGEST, MATRICES

__all__ = [
    "INTERFACES",
    "Report",
    "ReportError",
    "Unsupported",
    "column_of",
    "counts",
    "distinct",
    "read",
    "write",
    "write_text",
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
        return f"{self.target} claims to follow moespec {self.claims}, and was checked with {version('moespec')}"

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
    passed, failed, skipped = report.counts
    content = {
        "schema": SCHEMA,
        "interface": report.interface,
        "target": report.target,
        "seed": report.seed,
        "size": report.size,
        "repeat": report.repeat,
        "claims": report.claims,
        "suite": report.suite,
        "version": version("moespec"),
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "problems": report.problems,
        "unsupported": [vars(each) for each in report.unsupported],
        "variants": [vars(match) for match in report.matches],
        "cases": [
            {
                "id": result.id,
                "dtype": result.dtype,
                "mode": result.mode,
                "column": column_of(result.kind),
                "state": result.state,
                "fraction": result.fraction,
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


def read(path: Path, cases: Sequence[Case], suite: str) -> Report:
    """The report at `path`, made with the vectors whose digest is `suite` and whose cases are `cases`.

    Raises ReportError naming the file and the first thing in it that is not as `write` writes it.
    """
    try:
        return _report(json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant), cases, suite)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ReportError(f"{path}: {error}") from error


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


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _get(entry: Any, place: str, key: str, kind: type, known: Container[str] | None = None) -> Any:
    """The value of a key. Raises ValueError unless it is of that kind, and one of `known`."""
    if not isinstance(entry, dict) or key not in entry:
        raise ValueError(f"{place} has no {key!r}")
    value = entry[key]
    if type(value) is not kind:
        raise ValueError(f"{place}: {key} is {_short(value)}, expected {kind.__name__}")
    value = _text(value) if kind is str else value
    if known is not None and value not in known:
        raise ValueError(f"{place}: unknown {key} {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _number(entry: Any, place: str, key: str) -> int:
    value: int = _get(entry, place, key, int)
    if value < 0:
        raise ValueError(f"{place}: {key} is {value}, expected at least 0")
    return value


def _report(content: Any, cases: Sequence[Case], suite: str) -> Report:
    if _get(content, "it", "schema", int) != SCHEMA:
        raise ValueError(f"schema {content['schema']}, expected {SCHEMA}")
    interface, target = _get(content, "it", "interface", str, INTERFACES), _get(content, "it", "target", str)
    if not re.fullmatch(INTERFACES[interface], target):
        raise ValueError(f"target {_short(target)} is not a name for the interface {interface!r}")
    if _get(content, "it", "suite", str) != suite:
        raise ValueError("made with other vectors than those at hand, whose suite.json has another sha256")
    known = {case.id: case for case in cases}
    report = Report(
        interface,
        target,
        suite,
        [_case(entry, known) for entry in _get(content, "it", "cases", list)],
        [
            Unsupported(
                _get(entry, "a dtype not supported", "dtype", str, ALL_DTYPES),
                _get(entry, "a dtype not supported", "reason", str),
                _number(entry, "a dtype not supported", "cases"),
            )
            for entry in _get(content, "it", "unsupported", list)
        ],
        [_text(problem) for problem in _get(content, "it", "problems", list)],
        [_match(entry) for entry in _get(content, "it", "variants", list)],
        None if content.get("seed", "missing") is None else _number(content, "it", "seed"),
        _text(content.get("claims", "")),
        _get({"size": "small", **content}, "it", "size", str, SIZES),
        _get({"repeat": False, **content}, "it", "repeat", bool),
    )
    seen: set[tuple[str, str, str]] = set()
    for result in report.results:
        key = (result.id, result.dtype, result.mode)
        if key in seen:
            raise ValueError(f"case {result.id}: twice in {result.dtype} {result.mode}")
        seen.add(key)
    for name, count in zip(("passed", "failed", "skipped"), report.counts, strict=True):
        if _number(content, "it", name) != count:
            raise ValueError(f"{name} is {content[name]}, and its cases make {count}")
    return report


def _text(value: Any) -> str:
    """A text that can be printed and encoded: without control characters, but for the ends of lines."""
    if not isinstance(value, str):
        raise ValueError(f"{_short(value)}, expected text")
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)


def _case(entry: Any, known: Mapping[str, Case]) -> CaseResult:
    id = _get(entry, "a case", "id", str, known)
    place, case = f"case {id}", known[id]
    dtype, mode = _place(entry, place)
    outcomes = [_outcome(each, place) for each in _get(entry, place, "outcomes", list)]
    result = CaseResult(id, case.algorithm, case.kind, dtype, mode, outcomes, _measure(entry, place, "seconds"))
    result.table = _table(entry.get("table"), place)
    if _get(entry, place, "state", str) != result.state:
        raise ValueError(f"{place}: state {_short(entry['state'])}, and its outcomes make {result.state!r}")
    return result


def _table(entry: Any, place: str) -> Table | None:
    """A table of text, all three parts of one shape, no larger than `tables.shown` makes them."""
    if entry is None:
        return None
    place = f"{place}, its table"
    name = _get(entry, place, "name", str)
    parts = [_get(entry, place, key, list) for key in ("expected", "got", "wrong")]
    shapes = []
    for part, kind in zip(parts, (str, str, bool), strict=True):
        rows = [row for matrix in part for row in _list(matrix, place)]
        cells = [cell for row in rows for cell in _list(row, place)]
        if any(type(cell) is not kind for cell in cells) or any(len(_text(c)) > 40 for c in cells if kind is str):
            raise ValueError(f"{place}: a cell is not {kind.__name__}, or is too long")
        shapes.append([[len(row) for row in matrix] for matrix in part])
    if shapes[0] != shapes[1] or shapes[1] != shapes[2]:
        raise ValueError(f"{place}: its parts have different shapes")
    if len(shapes[0]) > MATRICES or any(len(m) > LARGEST or max(m, default=0) > LARGEST for m in shapes[0]):
        raise ValueError(f"{place}: larger than {MATRICES} tables of {LARGEST} by {LARGEST}")
    return Table(name, *parts)


def _list(value: Any, place: str) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{place}: {_short(value)}, expected a list")
    return value


def _match(entry: Any) -> Match:
    place = "a variant"
    algorithm = _get(entry, place, "algorithm", str, ALGORITHMS)
    dtype, mode = _place(entry, place)
    variant, computes, ledger, who = (_get(entry, place, key, str) for key in ("variant", "computes", "ledger", "who"))
    agree, of = _number(entry, place, "agree"), _number(entry, place, "of")
    return Match(algorithm, dtype, mode, variant, computes, ledger, who, agree, of)


def _place(entry: Any, place: str) -> tuple[str, str]:
    """Dtype and mode."""
    dtype, mode = _get(entry, place, "dtype", str, ALL_DTYPES), _get(entry, place, "mode", str)
    if mode != files.MODE and not is_mode(mode):
        raise ValueError(f"{place}: unknown mode {_short(mode)}")
    return dtype, mode


def _outcome(entry: Any, place: str) -> Outcome:
    stage, state = _get(entry, place, "stage", str), _get(entry, place, "state", str, STATES)
    message, trace = _get(entry, place, "message", str), _text(entry.get("trace", ""))
    if entry.get("fraction", 0.0) is None:
        return Outcome(stage, state, math.inf, message, trace)
    return Outcome(stage, state, _measure(entry, place, "fraction", "a number of at least 0, or null"), message, trace)


def _measure(entry: Any, place: str, key: str, expected: str = "a number of at least 0") -> float:
    value = entry.get(key, "missing")
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{place}: {key} is {_short(value)}, expected {expected}")
    return float(value)
