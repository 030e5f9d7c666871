"""`report.json`: everything that came of one run or of checked files, from which matrix, page and badge are made.

`reading.read` reads it again.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from moespec.conformance.check.results import COLUMNS, Report
from moespec.version import version

__all__ = [
    *("INTERFACES", "SCHEMA", "ReportError", "column_of", "distinct", "write", "write_text"),
]

SCHEMA = 2
INTERFACES = {"target": r"\w+(\.\w+)*", "adapter": r"\w+(\.\w+)*(:\w+(\.\w+)*)?", "files": r"[^\x00-\x1f\x7f]+"}
"""Each with the form of a name of what was checked: a module, an object in one, or a folder."""


class ReportError(Exception):
    """A file is not a report of this suite; the message names it."""


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
