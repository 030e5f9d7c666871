"""The matrix as text: rows are the algorithms of the registry, columns the kinds of cases in each dtype and mode."""

import math
import shlex
from collections.abc import Iterable, Sequence

from moespec.conformance.engine.rows import ALGORITHMS
from moespec.conformance.report.report import Report
from moespec.conformance.report.results import COLUMNS, FAILED, STATES, CaseResult

__all__ = ["SIGNS", "cell", "command", "failures", "skips", "summary", "table", "total"]

SIGNS = {"fail": "F", "error": "E", "waived": "w", "not implemented": "-", "inconclusive": "?", "unchecked": "u"}
LEGEND = (
    "A number alone: that many cases pass. F failed, E raised an exception, w failed and waived, - not implemented, "
    "? inconclusive (a choice is too close to a tie for the dtype), u an optional check that is not made; each with "
    "the number of such cases of all."
)


def table(results: Sequence[CaseResult], algorithms: Sequence[str] = tuple(ALGORITHMS)) -> str:
    """The matrix as text: one block for each dtype and mode, a row for each of the algorithms that were chosen."""
    blocks = []
    for dtype, mode in dict.fromkeys((result.dtype, result.mode) for result in results):
        own = [result for result in results if (result.dtype, result.mode) == (dtype, mode)]
        rows = [[f"{dtype} {mode}", *COLUMNS, "tolerance used", "seconds"]]
        for algorithm in algorithms:
            mine = [result for result in own if result.algorithm == algorithm]
            cells = [cell([r for r in mine if r.kind in kinds]) for kinds in COLUMNS.values()]
            fraction = max((result.fraction for result in mine), default=0.0)
            used = f"{100 * fraction:.0f} %" if 0 < fraction <= 1 else "over" if fraction else ""
            seconds = f"{sum(result.seconds for result in mine):.1f}" if any(r.seconds for r in mine) else ""
            rows.append([algorithm, *cells, used, seconds])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        blocks.append("\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]))
    return "\n\n".join([*blocks, LEGEND])


def cell(results: Sequence[CaseResult]) -> str:
    """The number of cases with each outcome, in the signs of the legend."""
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

    After them the known variants that they equal, and what is wrong besides the cases.
    """
    lines = []
    for result in report.results:
        if result.state in FAILED:
            first = result.first
            size = (
                f", {first.fraction:.3g} of the tolerance" if math.isfinite(first.fraction) and first.fraction else ""
            )
            lines += [
                f"{result.state.upper()} {result.id} [{result.dtype} {result.mode}] first at {first.stage}{size}",
                *(f"    {line}" for line in first.message.splitlines()),
                f"    {command(report, result)}",
            ]
    known = [f"{m.algorithm} [{m.dtype} {m.mode}] equals the known variant {m.text}" for m in report.matches]
    return "\n".join([*lines, *known, *(f"FAIL {problem}" for problem in report.problems)])


def command(report: Report, result: CaseResult) -> str:
    """The command that runs, or checks, a case alone."""
    mode = f" --mode {shlex.quote(result.mode)}" if report.interface == "target" else ""
    interface = f"--{report.interface} {shlex.quote(report.target)}"
    fresh = "" if report.seed is None else f" --fresh {report.seed}"
    return f"python -m moespec.conformance show {result.id} {interface} --dtype {result.dtype}{mode}{fresh}"


def skips(report: Report) -> list[str]:
    """Why cases were skipped, with their number."""
    found: dict[str, int] = {}
    for result in report.results:
        if result.state not in ("pass", *FAILED):
            reason = f"{result.dtype} {result.mode}: {result.state}: {_reason(result)}"
            found[reason] = found.get(reason, 0) + 1
    lines = [f"{number:4d} skipped, {reason}" for reason, number in sorted(found.items())]
    return lines + [f"{u.cases:4d} skipped, {u.dtype}: not supported: {u.reason}" for u in report.unsupported]


def _reason(result: CaseResult) -> str:
    if result.state == "unchecked":
        return "errors of values are optional for a target"
    return result.first.message


def summary(report: Report, algorithms: Sequence[str] = tuple(ALGORITHMS)) -> str:
    """All that is printed of a report but for the last line: the matrix, what was skipped, and what failed."""
    parts = [] if report.seed is None else [f"fresh, seed {report.seed}\n"]
    parts += [f"{report.note}\n"] if report.note else []
    parts += [table(report.results, algorithms) + "\n"] if report.results else []
    parts += [*skips(report), failures(report)]
    return "\n".join(part for part in parts if part)


def total(reports: Iterable[Report]) -> str:
    """The last line."""
    passed, failed, skipped = (sum(numbers) for numbers in zip((0, 0, 0), *(r.counts for r in reports), strict=True))
    return f"{passed} passed, {failed} failed, {skipped} skipped"
