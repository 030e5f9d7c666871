"""Reading `report.json`, which may come from a third party: only what `run --report` and `check --report` write is accepted.

What was read is text to be escaped.
"""

import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from moespec.conformance.author.large import SIZES
from moespec.conformance.check import files
from moespec.conformance.check.modes import MODES
from moespec.conformance.check.results import STATES, CaseResult, Match, Table
from moespec.conformance.compare import ALL_DTYPES, Outcome
from moespec.conformance.format import Case
from moespec.conformance.report.report import INTERFACES, SCHEMA, Report, ReportError, Unsupported
from moespec.conformance.report.tables import LARGEST, MATRICES
from moespec.conformance.rows import ALGORITHMS

__all__ = ["read"]


def read(path: Path, cases: Sequence[Case], suite: str) -> Report:
    """The report at `path`, made with the vectors whose digest is `suite` and whose cases are `cases`.

    Raises ReportError naming the file and the first thing in it that is not as `write` writes it.
    """
    try:
        return _report(json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant), cases, suite)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ReportError(f"{path}: {error}") from error


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
        if any(type(cell) is not kind for cell in cells) or any(
            len(c) > 40 or _text(c) != c for c in cells if kind is str
        ):
            raise ValueError(f"{place}: a cell is not {kind.__name__}, is too long or cannot be printed")
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
    if mode not in (*MODES, files.MODE):
        raise ValueError(f"{place}: unknown mode {_short(mode)}")
    return dtype, mode


def _outcome(entry: Any, place: str) -> Outcome:
    stage, state = _get(entry, place, "stage", str), _get(entry, place, "state", str, STATES)
    message, trace = _get(entry, place, "message", str), _text(entry.get("trace", ""))
    if entry.get("fraction", 0.0) is None:
        return Outcome(stage, state, math.inf, message, trace)
    fraction = _measure(entry, place, "fraction", "a number of at least 0, or null")
    if state == "pass" and fraction > 1:
        raise ValueError(f"{place}: {stage} passes with {_short(fraction)} of the tolerance")
    return Outcome(stage, state, fraction, message, trace)


def _measure(entry: Any, place: str, key: str, expected: str = "a number of at least 0") -> float:
    value = entry.get(key, "missing")
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{place}: {key} is {_short(value)}, expected {expected}")
    return float(value)
