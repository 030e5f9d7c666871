"""The matrix as text: rows are the algorithms of the registry, columns the kinds of cases in each dtype and mode."""

import shlex
from collections import Counter
from collections.abc import Sequence

from moespec.conformance.check.results import COLUMNS, FAILED, CaseResult, Report
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report.causes import causes
from moespec.spec.checks import plural

__all__ = ["MOST", "SIGNS", "cell", "command", "failure", "failures", "skips", "summary", "table", "total"]

SIGNS = {
    "fail": "F",
    "error": "E",
    "reordered": "o",
    "waived": "w",
    "not implemented": "-",
    "inconclusive": "?",
    "unchecked": "u",
}
LEGEND = (
    "A bare number counts passing cases. F failed, E raised an exception, o failed by the order of "
    "equal scores alone, w failed and waived, - not implemented, "
    "? inconclusive (a choice is too close to a tie for the dtype), u an optional check that is not made; each with "
    "the number of such cases."
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
    return "\n\n".join(blocks)


def cell(results: Sequence[CaseResult]) -> str:
    """The number of cases with each outcome, in the signs of the legend: "23 -9" of 23 that pass and 9 not implemented."""
    states = Counter(result.state for result in results)
    return " ".join(f"{sign}{states[state]}" for state, sign in {"pass": "", **SIGNS}.items() if states[state]) or "."


MOST, REASONS = 5, 3
"""Failures of an algorithm, and reasons of the skips in a dtype, that are printed."""


def failures(report: Report, *, everything: bool = False) -> str:
    """What is wrong besides the cases and the known variants that failures equal; then, for each failure, the case, where
    it first differs, by how much, and the command that runs it alone.

    An exception that several cases raise is one entry, with the lines of code that raised it. Of each algorithm a few are
    listed, or with `everything` all.
    """
    known = [f"{m.algorithm} [{m.dtype} {m.mode}] {m.text}" for m in report.matches]
    lines = [*known, *(f"FAIL {problem}" for problem in report.problems)]
    grouped = causes(report)
    said = sorted((cause for cause in grouped if cause.in_words), key=lambda cause: -len(cause.results))
    lines += [f"{cause.text} ({cause.first.id}{cause.more})" for cause in said[: None if everything else MOST]]
    for cause in grouped:
        if cause.first.state == "error":
            lines += failure(report, cause.first, cause.more)
    counts: dict[str, int] = {}
    for result in report.results:
        if result.state in FAILED and result.state != "error":
            count = counts[result.algorithm] = counts.get(result.algorithm, 0) + 1
            lines += failure(report, result) if everything or count <= MOST else []
    for algorithm, count in counts.items():
        if count > MOST and not everything:
            lines.append(
                f"{algorithm}: {plural(count - MOST, 'more failures')}; --all prints all, and --report writes them"
            )
    return "\n".join(lines)


def failure(report: Report, result: CaseResult, more: str = "") -> list[str]:
    """The lines of one: the case, where it first differs, by how much, and the command that runs it alone."""
    first = result.first
    word = "ERROR" if result.state == "error" else "FAIL"
    return [
        f"{word} {result.id} [{result.dtype} {result.mode}] first at {first.stage}{more}",
        *(f"    {line}" for line in [*first.message.splitlines(), *filter(None, [result.explanation])]),
        *(f"    {line}" for line in first.trace.splitlines()),
        f"    {command(report, result)}",
    ]


def command(report: Report, result: CaseResult) -> str:
    """The command that runs, or checks, a case alone."""
    mode = (
        f" --mode {shlex.quote(result.mode)}"
        if (report.interface != "files" and result.mode != "eager") or report.interface == "target"
        else ""
    )
    interface = f"--{report.interface} {shlex.quote(report.target)}"
    fresh = "" if report.seed is None else f" --fresh {report.seed}"
    fresh += "" if report.size == "small" else f" --size {report.size}"
    fresh += " --repeat" if report.repeat else ""
    return f"moespec conformance show {result.id} {interface} --dtype {result.dtype}{mode}{fresh}"


def skips(report: Report) -> list[str]:
    """Why cases were skipped, with their number: a line for each dtype and mode."""
    counts: dict[str, Counter[str]] = {}
    for result in report.results:
        if result.state not in ("pass", *FAILED):
            of = counts.setdefault(f"{result.dtype} {result.mode}", Counter())
            of[f"{result.state}: {_reason(result)}"] += 1
    lines = []
    for place, reasons in counts.items():
        said = [
            f"{reason} ({number})" if len(reasons) > 1 else reason for reason, number in reasons.most_common(REASONS)
        ]
        said += [f"{len(reasons) - REASONS} other reasons"] if len(reasons) > REASONS else []
        lines.append(f"{reasons.total()} skipped, {place}: {'; '.join(said)}")
    return lines + [f"{u.cases} skipped, {u.dtype}: not supported: {u.reason}" for u in report.unsupported]


def _reason(result: CaseResult) -> str:
    if result.state == "unchecked":
        return "errors of values are optional for a target"
    return result.first.message


def summary(report: Report, algorithms: Sequence[str] = tuple(ALGORITHMS), *, everything: bool = False) -> str:
    """All that is printed of a report but for the last line: the matrix, what failed, what was skipped, the legend."""
    parts = [] if report.seed is None else [f"{report.made}\n"]
    parts += [f"{report.note}\n"] if report.note else []
    parts += [table(report.results, algorithms) + "\n"] if report.results else []
    parts += [failures(report, everything=everything), *skips(report), LEGEND if report.results else ""]
    return "\n".join(part for part in parts if part)


def total(reports: Sequence[Report]) -> str:
    """The last line, which also says of what an adapter's backward pass was not checked."""
    passed, failed, skipped = (sum(numbers) for numbers in zip((0, 0, 0), *(r.counts for r in reports), strict=True))
    unseen = sorted({name for r in reports for name in r.not_differentiated})
    return f"{passed} passed, {failed} failed, {skipped} skipped" + (
        f"; backward not checked: {', '.join(unseen)}" if unseen else ""
    )
