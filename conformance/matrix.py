"""The matrix: rows are the algorithms of the registry, columns the kinds of cases in each lane; and the report."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moespec.conformance.results import COLUMNS, FAILED, STATES, CaseResult
from moespec.spec import ALGORITHMS

__all__ = ["counts", "failures", "report", "skips", "table", "write_report"]

SIGNS = {"fail": "F", "error": "E", "waived": "w", "not implemented": "-", "inconclusive": "?", "unchecked": "u"}
LEGEND = (
    "A number alone: that many cases pass. F failed, E raised an exception, w failed and waived, - not implemented, "
    "? inconclusive (a choice is too close to a tie for the dtype), u an optional check that is not made; each with the "
    "number of such cases of all."
)


def column_of(kind: str) -> str:
    """The column of a class of cases."""
    return next(column for column, kinds in COLUMNS.items() if kind in kinds)


def table(results: Sequence[CaseResult], algorithms: Sequence[str] = tuple(ALGORITHMS)) -> str:
    """The matrix as text: one block for each lane and mode, a row for each of the algorithms that were asked for."""
    blocks = []
    for lane, mode in dict.fromkeys((result.lane, result.mode) for result in results):
        own = [result for result in results if (result.lane, result.mode) == (lane, mode)]
        rows = [[f"{lane} {mode}", *COLUMNS, "budget used"]]
        for algorithm in algorithms:
            mine = [result for result in own if result.algorithm == algorithm]
            cells = [_cell([r for r in mine if r.kind in kinds]) for kinds in COLUMNS.values()]
            share = max((result.share for result in mine), default=0.0)
            rows.append([algorithm, *cells, f"{100 * share:.0f} %" if share else ""])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        blocks.append("\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]))
    return "\n\n".join([*blocks, LEGEND])


def _cell(results: Sequence[CaseResult]) -> str:
    if not results:
        return "."
    states = [result.state for result in results]
    worst = min(states, key=list(STATES).index)
    if worst == "pass":
        return str(len(states))
    signs = [f"{SIGNS[state]}{states.count(state)}" for state in SIGNS if state in states]
    return f"{' '.join(signs)}/{len(states)}"


def failures(results: Iterable[CaseResult], target: str) -> str:
    """For each failure: the case, where it first differs, by how much, and the command that runs it alone."""
    lines = []
    for result in results:
        if result.state in FAILED:
            first = result.first
            size = f", {first.share:.3g} of the bound" if math.isfinite(first.share) and first.share else ""
            lines += [
                f"{result.state.upper()} {result.id} [{result.lane} {result.mode}] first at {first.stage}{size}",
                f"    {first.message}",
                f"    python -m moespec.conformance show {result.id} --target {target} --lane {result.lane} --mode {result.mode}",
            ]
    return "\n".join(lines)


def counts(results: Iterable[CaseResult]) -> tuple[int, int, int]:
    """Passed, failed, skipped: what is inconclusive, not implemented or unchecked is skipped, never passed."""
    states = [result.state for result in results]
    passed, failed = states.count("pass"), sum(state in FAILED for state in states)
    return passed, failed, len(states) - passed - failed


def skips(results: Iterable[CaseResult], refused: dict[str, str], cases: int) -> list[str]:
    """Why cases were skipped, with their number."""
    found: dict[str, int] = {}
    for result in results:
        if result.state not in ("pass", *FAILED):
            reason = f"{result.lane} {result.mode}: {result.state}: {_reason(result)}"
            found[reason] = found.get(reason, 0) + 1
    lines = [f"{number:4d} skipped, {reason}" for reason, number in sorted(found.items())]
    return lines + [f"{cases:4d} skipped, {lane}: refused by the target: {reason}" for lane, reason in refused.items()]


def _reason(result: CaseResult) -> str:
    if result.state == "unchecked":
        return "faults of values are optional for a target"
    return result.first.message


def report(results: Sequence[CaseResult], target: str, refused: dict[str, str]) -> dict[str, Any]:
    """Everything as one JSON object."""
    passed, failed, skipped = counts(results)
    return {
        "schema": 1,
        "target": target,
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "refused": refused,
        "cases": [
            {
                "id": result.id,
                "lane": result.lane,
                "mode": result.mode,
                "column": column_of(result.kind),
                "state": result.state,
                "share": result.share,
                "outcomes": [
                    {
                        "stage": o.stage,
                        "state": o.state,
                        "share": o.share if math.isfinite(o.share) else None,
                        "message": o.message,
                    }
                    for o in result.outcomes
                ],
            }
            for result in results
        ],
    }


def write_report(content: dict[str, Any], path: Path) -> None:
    """Write the report, with sorted keys."""
    path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")
