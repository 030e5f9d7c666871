"""The matrix as one HTML file: a summary, a page for each algorithm with every case, and the specification's own text.

Nothing is loaded and nothing runs: pages are sections of which the browser shows the one that the address names. All
that comes from a report is escaped.
"""

import importlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from moespec import spec
from moespec.conformance.format import Case
from moespec.conformance.matrix import LEGEND, cell, command, total
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.report import Report
from moespec.conformance.reproduce import code
from moespec.conformance.results import COLUMNS, FAILED, STATES, CaseResult, Convention
from moespec.spec import ALGORITHMS, LEDGER

__all__ = ["page"]


class Column(NamedTuple):
    """A column of the matrix: what was judged, its mode and lane, and its results by case."""

    report: Report
    mode: str
    lane: str
    results: dict[str, CaseResult]


def page(reports: Sequence[Report], cases: Sequence[Case], flags: dict[str, dict[str, str]]) -> str:
    """The text of the HTML file. `flags` are the meanings of flags, from `suite.flags`."""
    columns = _columns(reports)
    pages = [_algorithm(name, columns, [c for c in cases if c.algorithm == name], flags) for name in ALGORITHMS]
    modules = sorted({module for name in ALGORITHMS for module in _modules_of(name)})
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>moespec conformance: {escape(total(reports))}</title>",
            f"<style>{(Path(__file__).parent / 'page.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>",
            f'<header><h1><a href="#">moespec conformance</a></h1><p>{escape(total(reports))}</p></header>\n<main>',
            _summary(reports, columns),
            *pages,
            *(_specification(module) for module in modules),
            "</main>\n</body>\n</html>\n",
        )
    )


def _columns(reports: Sequence[Report]) -> list[Column]:
    """One for each target, mode and lane that has results, the lanes of a target and mode side by side."""
    columns: dict[tuple[str, str, str, str], Column] = {}
    for report in reports:
        for result in report.results:
            place = (report.door, report.target, result.mode, result.lane)
            column = columns.setdefault(place, Column(report, result.mode, result.lane, {}))
            column.results[result.id] = result
    return [column for group in _groups(list(columns.values())) for column in group]


def _breakable(text: str) -> str:
    """A name, with places where a line may break."""
    return re.sub(r"([._/])", r"\1<wbr>", escape(text))


def _link(target: str, text: str) -> str:
    return f'<a href="#{escape(target)}">{_breakable(text)}</a>'


def _state(state: str) -> str:
    """The class of a state."""
    return state.replace(" ", "-")


def _worst(results: Sequence[CaseResult]) -> str:
    return min((result.state for result in results), key=list(STATES).index, default="none")


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Columns by what was judged and how: neighbours that differ in the lane only."""
    groups: dict[tuple[str, str, str], list[Column]] = {}
    for column in columns:
        groups.setdefault((column.report.door, column.report.target, column.mode), []).append(column)
    return list(groups.values())


def _name(column: Column) -> str:
    return f"{_breakable(column.report.target)} <i>{escape(column.mode)}</i>"


def _table(columns: Sequence[Column], rows: Iterable[tuple[str, str]]) -> str:
    """A table with a column for each `Column` under the name of its target; a row is its heading and its cells."""
    groups = _groups(columns)
    names = "".join(f'<th colspan="{len(group)}" scope="colgroup">{_name(group[0])}</th>' for group in groups)
    lanes = "".join(f'<th scope="col">{escape(column.lane)}</th>' for group in groups for column in group)
    body = "\n".join(f'<tr><th scope="row">{heading}</th>{cells}</tr>' for heading, cells in rows)
    return (
        f'<div class="scroll"><table>\n<thead><tr><td rowspan="2"></td>{names}</tr>\n<tr>{lanes}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _counted(column: Column, cases: Iterable[str]) -> str:
    """The cell of several cases."""
    mine = [column.results[id] for id in cases if id in column.results]
    return f'<td class="{_state(_worst(mine))}">{escape(cell(mine)) if mine else "·"}</td>'


def _summary(reports: Sequence[Report], columns: Sequence[Column]) -> str:
    judged = []
    for report in reports:
        passed, failed, skipped = report.counts
        notes = [f"{r.lane} refused ({r.cases} cases): {r.reason}" for r in report.refused] + report.faults
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        judged.append(
            f"<li><b>{escape(report.target)}</b> ({escape(report.door)}): {passed} passed, {failed} failed, "
            f"{skipped} skipped{f'<ul>{items}</ul>' if items else ''}</li>"
        )
    rows = []
    for name in ALGORITHMS:
        cells = (_counted(column, [i for i, r in column.results.items() if r.algorithm == name]) for column in columns)
        rows.append((_link(name, name), "".join(cells)))
    failed_cases = [
        f"<li>{_link(result.id, result.id)} <i>{escape(column.report.target)} {escape(result.lane)} "
        f"{escape(result.mode)}</i>: {escape(result.state)} at <code>{escape(result.first.stage)}</code></li>"
        for column in columns
        for result in column.results.values()
        if result.state in FAILED
    ]
    known = [
        f"<li>{escape(report.target)} <i>{escape(convention.lane)} {escape(convention.mode)}</i>: {_convention(convention)}</li>"
        for report in reports
        for convention in report.conventions
    ]
    states = "".join(
        f'<dt class="{_state(state)}">{state}</dt><dd>{escape(text)}</dd>' for state, text in STATES.items()
    )
    return "\n".join(
        (
            f'<section id="matrix">\n<ul class="judged">{"".join(judged)}</ul>',
            _table(columns, rows),
            f"<p>{escape(LEGEND)}</p>",
            f"<h2>Known deviations</h2>\n<ul>{''.join(known)}</ul>" if known else "",
            f"<h2>Failures</h2>\n<ul>{''.join(failed_cases)}</ul>" if failed_cases else "<p>Nothing failed.</p>",
            f"<h2>States</h2>\n<dl>{states}</dl>\n</section>",
        )
    )


def _algorithm(name: str, columns: Sequence[Column], cases: Sequence[Case], flags: dict[str, dict[str, str]]) -> str:
    algorithm = ALGORITHMS[name]
    rows = []
    for kind, classes in COLUMNS.items():
        ids = [case.id for case in cases if case.kind in classes]
        if ids:
            rows.append((escape(kind), "".join(_counted(column, ids) for column in columns)))
    links = ", ".join(_link(f"spec.{module}", f"moespec.spec.{module}") for module in _modules_of(name))
    return "\n".join(
        (
            f'<section class="page" id="{escape(name)}">\n<p><a href="#">all algorithms</a></p>\n<h2>{escape(name)}</h2>',
            f"<p>Section {escape(algorithm.section)}, revision {algorithm.revision}. {escape(algorithm.cites)}. "
            f"Specified in {links}.</p>",
            _table(columns, rows),
            *(_case(case, columns, flags) for case in cases),
            "</section>",
        )
    )


def _case(case: Case, columns: Sequence[Column], flags: dict[str, dict[str, str]]) -> str:
    mine = [(column, column.results[case.id]) for column in columns if case.id in column.results]
    meanings = "".join(
        f"<details><summary>{escape(flag)}</summary><p>{escape(flags[flag]['goes_wrong'])} "
        f"{escape(flags[flag]['matters'])}</p></details>"
        for flag in case.flags
    )
    lines = []
    for group in _groups([column for column, _ in mine]):
        chips = "".join(_chip(column.lane, column.results[case.id]) for column in group)
        reasons: dict[str, list[str]] = {}
        for column in group:
            result = column.results[case.id]
            if result.state not in ("pass", *FAILED):
                reasons.setdefault(result.first.message, []).append(column.lane)
        skipped = "".join(f"<br><small>{', '.join(lanes)}: {escape(text)}</small>" for text, lanes in reasons.items())
        lines.append(f"<li>{_name(group[0])} {chips}{skipped}</li>")
    return "\n".join(
        (
            f'<article id="{escape(case.id)}">\n<h3>{escape(case.id)}</h3>\n<p><i>{escape(case.kind)}</i> '
            f"{escape(case.purpose)}</p>",
            f'<div class="flags">{meanings}</div>\n<ul class="chips">{"".join(lines)}</ul>',
            *(_failure(column.report, case, result) for column, result in mine if result.state in FAILED),
            "</article>",
        )
    )


def _chip(lane: str, result: CaseResult) -> str:
    """A case in one lane: its state, and how much of the bound is used as a number and a bar."""
    if result.state != "pass":
        return f'<span class="{_state(result.state)}">{escape(lane)} {result.state}</span>'
    percent = math.ceil(100 * result.share)
    used = f"pass, {percent} %" if percent else "pass"
    return f'<span class="pass share" style="--share:{percent}%">{escape(lane)} {used}</span>'


def _failure(report: Report, case: Case, result: CaseResult) -> str:
    first = result.first
    stage = first.stage.partition("/")[0]
    if stage == "gradient" and case.gradients is not None:
        stage = case.gradients.stage
    calls = PROGRAMS[case.algorithm][stage].calls if stage in PROGRAMS[case.algorithm] else ()
    modules = _modules(calls) or _modules_of(case.algorithm)
    links = ", ".join(_link(f"spec.{module}", f"moespec.spec.{module}") for module in modules)
    share = f", {first.share:.3g} of the bound" if math.isfinite(first.share) and first.share else ""
    others = [f"{o.stage}: {o.state}" for o in result.outcomes if o is not first]
    lines = code(report, result)
    return "\n".join(
        (
            f'<div class="failure"><h4>{escape(result.state)}: {escape(report.target)} {escape(result.lane)} '
            f"{escape(result.mode)}</h4>",
            f"<p>First at <code>{escape(first.stage)}</code>{share}. Specified in {links}.</p>",
            f'<pre class="message">{escape(first.message)}</pre>',
            *(f"<p>{_convention(convention)}</p>" for convention in report.conventions_of(result)),
            f"<pre><code>{escape(lines)}</code></pre>" if lines else "",
            f"<pre>$ {escape(command(report, result))}</pre>",
            f"<p>Then {escape(', '.join(others))}.</p>" if others else "",
            "</div>",
        )
    )


def _convention(convention: Convention) -> str:
    """A known deviation, and the question on which it differs from the specification."""
    entry = LEDGER.get(convention.ledger)
    read = f" {entry.question} The reading here: {entry.reading}" if entry else ""
    return f"In {_link(convention.algorithm, convention.algorithm)} it equals {escape(convention.text)}.{escape(read)}"


def _modules(names: Iterable[str]) -> list[str]:
    """The modules of the specification in which public names are defined."""
    modules = {"ROUTERS": "routers", "CAPACITY_RULES": "capacity"}
    for name in set(names) & set(spec.__all__) - modules.keys():
        modules[name] = getattr(spec, name).__module__.removeprefix("moespec.spec.")
    return sorted({modules[name] for name in names if name in modules})


@cache
def _modules_of(algorithm: str) -> tuple[str, ...]:
    calls = [name for stage in PROGRAMS[algorithm].values() for name in stage.calls]
    return tuple(_modules(ALGORITHMS[algorithm].functions or calls))


def _specification(module: str) -> str:
    """The text of a module of the specification, as a page."""
    path = Path(importlib.import_module(f"moespec.spec.{module}").__file__ or "")
    return (
        f'<section class="page" id="spec.{module}">\n<p><a href="#">all algorithms</a></p>\n'
        f"<h2>moespec.spec.{module}</h2>\n<pre>{escape(path.read_text(encoding='utf-8'))}</pre>\n</section>"
    )
