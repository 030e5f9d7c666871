"""Renders, as text, the matrix of algorithms and kinds of cases for each dtype and mode, and the failures grouped by cause."""

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from moespec.conformance.check.results import COLUMNS, FAILED, CaseResult, Report, covered
from moespec.conformance.check.target import STRIDED
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.suite import CLASSES
from moespec.spec import ROUTERS
from moespec.spec.checks import plural

__all__ = [
    *("MOST", "SIGNS", "causes", "cell", "command", "failure", "failures", "missed", "skips", "summary", "table"),
    *("total",),
]

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
    "Numbers count cases; a bare number counts passing cases. F failed, E raised an exception, o failed only in "
    "tie-breaking, w known failure (waived), - not implemented, "
    "? inconclusive (a choice is too close to a tie for the dtype), u optional check, skipped."
)


def table(
    results: Sequence[CaseResult], algorithms: Sequence[str] = tuple(ALGORITHMS), left_out: Collection[str] = ()
) -> str:
    """Return the matrix as text, with one block per dtype and mode and one row per chosen algorithm.

    left_out: ids of the chosen algorithms' cases that were not run. The mode `strided` runs and counts only some cases.
    """
    blocks = []
    for dtype, mode in dict.fromkeys((result.dtype, result.mode) for result in results):
        own = [result for result in results if (result.dtype, result.mode) == (dtype, mode)]
        rows = [[f"{dtype} {mode}", *COLUMNS, "passed", "tolerance used", "seconds"]]
        for algorithm in algorithms:
            mine = [result for result in own if result.algorithm == algorithm]
            cells = [cell([r for r in mine if r.kind in kinds]) for kinds in COLUMNS.values()]
            others = 0 if mode == STRIDED else sum(id.partition("/")[0] == algorithm for id in left_out)
            passed = f"{sum(r.state == 'pass' for r in mine)} of {len(mine) + others}" if mine else ""
            fraction = max((result.fraction for result in mine), default=0.0)
            used = f"{100 * fraction:.0f} %" if 0 < fraction <= 1 else "over" if fraction else ""
            seconds = f"{sum(result.seconds for result in mine):.1f}" if any(r.seconds for r in mine) else ""
            rows.append([algorithm, *cells, passed, used, seconds])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        blocks.append("\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]))
    return "\n\n".join(blocks)


def cell(results: Sequence[CaseResult]) -> str:
    """Return the number of cases per outcome, in the symbols of the legend, such as "23 -9" for 23 passed and 9 not implemented."""
    states = Counter(result.state for result in results)
    return " ".join(f"{sign}{states[state]}" for state, sign in {"pass": "", **SIGNS}.items() if states[state]) or "."


@dataclass
class Cause:
    """A common cause of several failures, as a sentence, and the list of these failures."""

    text: str
    results: list[CaseResult] = field(default_factory=list)

    @property
    def first(self) -> CaseResult:
        """The first failure."""
        return self.results[0]

    @property
    def in_words(self) -> bool:
        """Whether the text states the cause of the failures, and not only their location."""
        explained = self.first.explanation
        return self.first.state == "reordered" or (": " in explained and explained in self.text)

    @property
    def more(self) -> str:
        """The number of further failures in words, or "" if there are none."""
        count = len(self.results) - 1
        return f" and {count} more" if count else ""


def causes(report: Report) -> list[Cause]:
    """Group the failures of a report by cause: named causes first, then exceptions, then unexplained failures."""
    by_cause: dict[tuple[int, str, str], Cause] = {}
    for result in report.results:
        if result.state in FAILED:
            rank, text = _cause(report, result)
            trace = result.first.trace if rank == EXCEPTION else ""
            by_cause.setdefault((rank, text, trace), Cause(text)).results.append(result)
    return [by_cause[key] for key in sorted(by_cause, key=lambda key: key[0])]


VARIANT, ORDER, REPEAT, EXCEPTION, INVALID, UNKNOWN = range(6)


def _cause(report: Report, result: CaseResult) -> tuple[int, str]:
    """Return the rank and the text of the cause of a failure."""
    first, matches = result.first, report.matches_of(result)
    if result.state == "reordered":
        return ORDER, f"{result.algorithm}: differs only in tie-breaking"
    if result.state == "error":
        return EXCEPTION, first.message
    if first.message.startswith("not repeatable"):
        return REPEAT, f"{result.algorithm}: two calls return different results"
    if result.kind == "negative":
        return INVALID, f"{result.algorithm}: error cases"
    if matches:
        names = " or ".join(f"{match.variant}: {match.computes}" for match in matches)
        part = "" if any(match.agree == match.of for match in matches) else " (in part)"
        return VARIANT, f"{result.algorithm}: equals the known variant {names}{part}"
    return UNKNOWN, f"{result.algorithm}: {result.explanation or f'unexplained, first at {first.stage}'}"


MOST, REASONS = 5, 3
"""The maximum number of failures per algorithm, and of skip reasons per dtype and mode, that are printed."""


def failures(report: Report, *, everything: bool = False) -> str:
    """List the known variants that match failures, the problems outside the cases, and then each failure. An entry
    states the case, the first difference with its size, and the command that runs only this case.

    If several cases raise the same exception, one entry states the lines of code that raised it. The list contains a
    few failures per algorithm, or all failures if `everything` is true.
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
                f"{algorithm}: {plural(count - MOST, 'more failures')}; print all with --all or write them with --report"
            )
    return "\n".join(lines)


def failure(report: Report, result: CaseResult, more: str = "") -> list[str]:
    """Return the lines of one failure: the case, the first difference with its size, and the command that runs only this case."""
    first = result.first
    word = "ERROR" if result.state == "error" else "FAIL"
    return [
        f"{word} {result.id} [{result.dtype} {result.mode}] first at {first.stage}{more}",
        *(f"    {line}" for line in [*first.message.splitlines(), *filter(None, [result.explanation])]),
        *(f"    {line}" for line in first.trace.splitlines()),
        f"    {command(report, result)}",
    ]


def command(report: Report, result: CaseResult) -> str:
    """Return the command that runs or checks a single case."""
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
    """Return the reasons for skipped cases with counts, one line per dtype and mode."""
    counts: dict[str, Counter[str]] = {}
    for result in report.results:
        if result.state not in ("pass", *FAILED):
            of = counts.setdefault(f"{result.dtype} {result.mode}", Counter())
            optional = "value errors are optional for a target"
            of[f"{result.state}: {optional if result.state == 'unchecked' else result.first.message}"] += 1
    lines = []
    for place, reasons in counts.items():
        said = [
            f"{reason} ({number})" if len(reasons) > 1 else reason for reason, number in reasons.most_common(REASONS)
        ]
        said += [f"{len(reasons) - REASONS} other reasons"] if len(reasons) > REASONS else []
        lines.append(f"{reasons.total()} skipped, {place}: {'; '.join(said)}")
    return lines + [f"{u.cases} skipped, {u.dtype}: not supported: {u.reason}" for u in report.unsupported]


def summary(report: Report, algorithms: Sequence[str] = tuple(ALGORITHMS), *, everything: bool = False) -> str:
    """Return the printed text of a report except the last line: the matrix, failures, skips and the legend."""
    parts = [] if report.seed is None else [f"{report.made}\n"]
    parts += [f"{note}\n" for note in report.notes]
    parts += [table(report.results, algorithms, report.left_out) + "\n"] if report.results else []
    parts += [failures(report, everything=everything), *skips(report), LEGEND if report.results else ""]
    return "\n".join(part for part in parts if part)


def missed(reports: Sequence[Report]) -> str:
    """Return a line on the cases that were not compared, and on layers of real size if none was run, or "" if nothing was missed."""
    _, cases, missing = covered(reports)
    named = ", ".join(f"{word} {missing[word]}" for word in CLASSES if missing[word])
    parts = [f"{missing.total()} of {cases} cases ({named})"] if missing else []
    routers = (r for one in reports if one.interface != "files" for r in one.results if r.algorithm in ROUTERS)
    small = any(result.state != "not implemented" for result in routers) and all(one.size == "small" for one in reports)
    parts += ["layers of real size (--fresh SEED --size large)"] if small else []
    return f"not compared: {'; '.join(parts)}" if parts else ""


def total(reports: Sequence[Report]) -> str:
    """Return the last line: results, coverage of the cases and, for adapters, algorithms whose backward pass was not checked."""
    passed, failed, skipped = (sum(numbers) for numbers in zip((0, 0, 0), *(r.counts for r in reports), strict=True))
    unseen = sorted({name for r in reports for name in r.not_differentiated})
    of_cases = "{} of {} cases passed".format(*covered(reports)[:2])
    return f"{passed} passed, {failed} failed, {skipped} skipped; {of_cases}" + (
        f"; backward not checked: {', '.join(unseen)}" if unseen else ""
    )
