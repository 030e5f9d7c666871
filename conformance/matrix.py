"""The matrix as text: rows are the algorithms of the registry, columns the kinds of cases in each lane and mode."""

import math
import shlex
from collections.abc import Iterable, Sequence

from moespec.conformance.report import Report
from moespec.conformance.results import COLUMNS, FAILED, STATES, CaseResult
from moespec.spec import ALGORITHMS

__all__ = ["SIGNS", "cell", "command", "failures", "skips", "summary", "table", "total"]

SIGNS = {"fail": "F", "error": "E", "waived": "w", "not implemented": "-", "inconclusive": "?", "unchecked": "u"}
LEGEND = (
    "A number alone: that many cases pass. F failed, E raised an exception, w failed and waived, - not implemented, "
    "? inconclusive (a choice is too close to a tie for the dtype), u an optional check that is not made; each with the "
    "number of such cases of all."
)


def table(results: Sequence[CaseResult], algorithms: Sequence[str] = tuple(ALGORITHMS)) -> str:
    """The matrix as text: one block for each lane and mode, a row for each of the algorithms that were asked for."""
    blocks = []
    for lane, mode in dict.fromkeys((result.lane, result.mode) for result in results):
        own = [result for result in results if (result.lane, result.mode) == (lane, mode)]
        rows = [[f"{lane} {mode}", *COLUMNS, "budget used", "seconds"]]
        for algorithm in algorithms:
            mine = [result for result in own if result.algorithm == algorithm]
            cells = [cell([r for r in mine if r.kind in kinds]) for kinds in COLUMNS.values()]
            share = max((result.share for result in mine), default=0.0)
            used = f"{100 * share:.0f} %" if 0 < share <= 1 else "over" if share else ""
            seconds = f"{sum(result.seconds for result in mine):.1f}" if any(r.seconds for r in mine) else ""
            rows.append([algorithm, *cells, used, seconds])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        blocks.append("\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]))
    return "\n\n".join([*blocks, LEGEND])


def cell(results: Sequence[CaseResult]) -> str:
    """How many of the cases came out how, with the signs of the legend."""
    if not results:
        return "."
    states = [result.state for result in results]
    worst = min(states, key=list(STATES).index)
    if worst == "pass":
        return str(len(states))
    signs = [f"{SIGNS[state]}{states.count(state)}" for state in SIGNS if state in states]
    return f"{' '.join(signs)}/{len(states)}"


def failures(report: Report) -> str:
    """For each failure: the case, where it first differs, by how much, and the command that runs it alone.

    After them the known deviations that they equal, and what is wrong beside the cases.
    """
    lines = []
    for result in report.results:
        if result.state in FAILED:
            first = result.first
            size = f", {first.share:.3g} of the bound" if math.isfinite(first.share) and first.share else ""
            lines += [
                f"{result.state.upper()} {result.id} [{result.lane} {result.mode}] first at {first.stage}{size}",
                *(f"    {line}" for line in first.message.splitlines()),
                f"    {command(report, result)}",
            ]
    known = [f"{c.algorithm} [{c.lane} {c.mode}] equals {c.text}" for c in report.conventions]
    return "\n".join([*lines, *known, *(f"FAIL {fault}" for fault in report.faults)])


def command(report: Report, result: CaseResult) -> str:
    """The command that runs, or judges, a case alone."""
    mode = f" --mode {result.mode}" if report.door == "target" else ""
    door = f"--{report.door} {shlex.quote(report.target)}"
    return f"python -m moespec.conformance show {result.id} {door} --lane {result.lane}{mode}"


def skips(report: Report) -> list[str]:
    """Why cases were skipped, with their number."""
    found: dict[str, int] = {}
    for result in report.results:
        if result.state not in ("pass", *FAILED):
            reason = f"{result.lane} {result.mode}: {result.state}: {_reason(result)}"
            found[reason] = found.get(reason, 0) + 1
    lines = [f"{number:4d} skipped, {reason}" for reason, number in sorted(found.items())]
    refused = [f"{r.cases:4d} skipped, {r.lane}: refused by the target: {r.reason}" for r in report.refused]
    return lines + refused


def _reason(result: CaseResult) -> str:
    if result.state == "unchecked":
        return "faults of values are optional for a target"
    return result.first.message


def summary(report: Report, algorithms: Sequence[str] = tuple(ALGORITHMS)) -> str:
    """All that is printed of a report but for the last line: the matrix, what was skipped, and what failed."""
    parts = [table(report.results, algorithms) + "\n"] if report.results else []
    parts += [*skips(report), failures(report)]
    return "\n".join(part for part in parts if part)


def total(reports: Iterable[Report]) -> str:
    """The last line."""
    passed, failed, skipped = (sum(numbers) for numbers in zip((0, 0, 0), *(r.counts for r in reports), strict=True))
    return f"{passed} passed, {failed} failed, {skipped} skipped"
