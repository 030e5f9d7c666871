"""Write and read `report.json`, which contains all results of a run or of checked files. `page.py` and `badge.py` render reports.

A report may come from a third party, so `read` accepts only files that `run --report` and `check --report` could write.
`report_schema.json` defines the format. This module checks rules that the schema cannot express. Texts in a report are not escaped.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from moespec.conformance.check.results import COLUMNS, CaseResult, Match, Report, Table, Unsupported, covered
from moespec.conformance.compare import Outcome
from moespec.conformance.format import Case
from moespec.conformance.manifest import check, parse
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.models.files import read_file, write_atomically
from moespec.version import version

__all__ = ["ReportError", "distinct", "read", "write"]

SCHEMA = 3
INTERFACES = {"target": r"\w+(\.\w+)*", "adapter": r"\w+(\.\w+)*(:\w+(\.\w+)*)?", "files": r"[^\x00-\x1f\x7f]+"}
"""For each interface, the regular expression for a target's name: a module, an object in a module, or a folder."""


class ReportError(Exception):
    """Raised if a file is not a report of this suite. The message names the file."""


def write(report: Report, path: Path) -> None:
    """Write the report as JSON with sorted keys."""
    own = ("interface", "target", "seed", "size", "repeat", "claims", "suite", "problems", "left_out", "called")
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "version": version(),
        "citation": report.citation,
        **{name: getattr(report, name) for name in own},
        **_counts(report),
        "unsupported": [vars(each) for each in report.unsupported],
        "variants": [vars(match) for match in report.matches],
        "cases": [
            {
                **{name: getattr(result, name) for name in ("id", "dtype", "mode", "state", "fraction", "explanation")},
                "column": next(column for column, kinds in COLUMNS.items() if result.kind in kinds),
                "seconds": round(result.seconds, 4),
                "outcomes": [
                    {**vars(o), "fraction": o.fraction if math.isfinite(o.fraction) else None} for o in result.outcomes
                ],
                "table": None if result.table is None else vars(result.table),
            }
            for result in report.results
        ],
    }
    content["digest"] = digest(content)
    write_atomically(path, (json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n").encode())


COUNTS = ("passed", "failed", "skipped", "cases_passed", "cases_in_all")


def _counts(report: Report) -> dict[str, int]:
    """Return the counts that the last line of a report states."""
    return dict(zip(COUNTS, (*report.counts, *covered([report])[:2]), strict=True))


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a report's content except the entry `digest`. The digest detects accidental changes but is not a signature."""
    said = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def distinct(reports: Mapping[Path, Report]) -> list[Report]:
    """Return the reports of several files.

    Raises ReportError, which names the first overlap, if two files cover the same target, case, dtype and mode.
    """
    owner: dict[tuple[str, ...], Path] = {}
    for path, report in reports.items():
        for result in report.results:
            key = (report.interface, report.title, result.id, result.dtype, result.mode)
            if owner.setdefault(key, path) != path:
                place = f"{report.title}: {result.id} {result.dtype} {result.mode}"
                raise ReportError(f"{path}: {place} is also in {owner[key]}")
    return list(reports.values())


def read(path: Path, cases: Sequence[Case], suite: str) -> Report:
    """Read the report at `path`. The report must come from vectors with the digest `suite` and contain only `cases`.

    Raises ReportError, which names the file and the first error in it, unless `write` could have written the file.
    """
    try:
        content = parse(read_file(path).decode())
        check(content, "report_schema.json")
        if content["digest"] != digest(content):
            raise ValueError("modified: its digest does not match its content")
        return _report(_printable(content), {case.id: case for case in cases}, suite)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ReportError(f"{path}: {error}") from error


def _printable(content: Any) -> Any:
    """Return the content with printable, encodable texts. Control characters other than line ends are replaced."""
    if isinstance(content, str):
        return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", content)
    if isinstance(content, list):
        return [_printable(each) for each in content]
    return {key: _printable(each) for key, each in content.items()} if isinstance(content, dict) else content


def _report(content: Mapping[str, Any], known: Mapping[str, Case], suite: str) -> Report:
    interface, target = content["interface"], content["target"]
    if not re.fullmatch(INTERFACES[interface], target):
        raise ValueError(f"target {target[:80]!r} is not a valid name for the interface {interface!r}")
    if content["suite"] != suite:
        raise ValueError(f"was made with other vectors: expected suite.json {suite[:12]}, got {content['suite'][:12]}")
    report = Report(
        interface,
        target,
        suite,
        [_case(entry, known) for entry in content["cases"]],
        [_record(Unsupported, entry) for entry in content["unsupported"]],
        content["problems"],
        [_record(Match, entry) for entry in content["variants"]],
        **{key: content[key] for key in ("seed", "claims", "size", "repeat") if key in content},
        left_out=content["left_out"],
        called=content["called"],
    )
    for match in report.matches:
        if match.algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {match.algorithm[:80]!r}")
    for (id, dtype, mode), times in Counter((r.id, r.dtype, r.mode) for r in report.results).items():
        if times > 1:
            raise ValueError(f"case {id}: appears twice in {dtype} {mode}")
    for id in report.left_out:
        if id not in known or any(result.id == id for result in report.results):
            raise ValueError(f"left_out: {id[:80]!r} is unknown or was run")
    for name, count in _counts(report).items():
        if content[name] != count:
            raise ValueError(f"{name} is {content[name]}, but its cases give {count}")
    cited = report.citation.replace(f" moespec {version()} ", f" moespec {content.get('version')} ")
    if content.get("citation", cited) != cited:
        raise ValueError(f"citation is {content['citation'][:80]!r}, but its cases give {cited!r}")
    return report


def _record(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    """Create a dataclass of type `kind` from the items of `entry` that are fields of `kind`. Ignores other items."""
    return kind(**{field.name: entry[field.name] for field in fields(kind) if field.name in entry})


def _case(entry: Mapping[str, Any], known: Mapping[str, Case]) -> CaseResult:
    id = entry["id"]
    outcomes = [
        _record(Outcome, {**each, "fraction": math.inf if each["fraction"] is None else float(each["fraction"])})
        for each in entry["outcomes"]
    ]
    if id not in known:
        raise ValueError(f"unknown case {id[:80]!r}")
    case = known[id]
    result = CaseResult(id, case.algorithm, case.kind, entry["dtype"], entry["mode"], outcomes, float(entry["seconds"]))
    result.table = _table(entry["table"], id) if entry.get("table") else None
    result.explanation = entry.get("explanation", "")
    if entry["state"] != result.state:
        raise ValueError(f"case {id}: state {entry['state']!r}, but its outcomes give {result.state!r}")
    return result


def _table(entry: Mapping[str, Any], id: str) -> Table:
    parts = [entry[key] for key in ("expected", "got", "wrong")]
    first, *others = ([[len(row) for row in matrix] for matrix in part] for part in parts)
    if any(shape != first for shape in others):
        raise ValueError(f"case {id}: the parts of its table differ in shape")
    return Table(entry["name"], *parts)
