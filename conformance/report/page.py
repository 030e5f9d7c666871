"""Renders the matrix as one HTML file: a summary, a page per algorithm with every case, and the specification's text.

The file loads no other files and runs no scripts. Each page is a section, and the URL's fragment selects the visible section.
All content from reports is escaped.
"""

import importlib
import inspect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moespec import spec
from moespec.conformance import call
from moespec.conformance.check.reproduce import code
from moespec.conformance.check.results import COLUMNS, FAILED, STATES, CaseResult, Report
from moespec.conformance.format import Case, Stage
from moespec.conformance.functions import function
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report.matrix import LEGEND, causes, cell, command, missed, total
from moespec.conformance.suite import VECTORS
from moespec.models.pages import render
from moespec.spec import LEDGER

__all__ = ["flags", "page"]


class Column(NamedTuple):
    """A column of the matrix, with a target, a mode, a dtype and the results by case."""

    report: Report
    mode: str
    dtype: str
    results: dict[str, CaseResult]

    def of(self, ids: Iterable[str]) -> list[CaseResult]:
        """Return the available results of some cases."""
        return [self.results[id] for id in ids if id in self.results]

    def worst(self, ids: Iterable[str]) -> str:
        """Return the worst state among some cases."""
        return min((result.state for result in self.of(ids)), key=list(STATES).index, default="none")

    def cell(self, ids: Iterable[str]) -> str:
        """Return the number of cases per outcome as text."""
        return cell(self.of(ids)) if self.of(ids) else "·"


class Algorithm(NamedTuple):
    """The content of one row: the cases, all case ids, the case ids by matrix column, and the modules that specify the algorithm."""

    name: str
    row: Any
    cases: list[Case]
    ids: list[str]
    kinds: dict[str, list[str]]
    modules: list[str]


def flags() -> Mapping[str, Mapping[str, Any]]:
    """Return the meaning of each case flag."""
    meanings: dict[str, dict[str, Any]] = json.loads((VECTORS.parent / "flags.json").read_text())
    return meanings


def page(reports: Sequence[Report], cases: Sequence[Case], flags: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the HTML file. flags: the meaning of each case flag."""
    columns = _columns(reports)
    algorithms = [_algorithm(name, [case for case in cases if case.algorithm == name]) for name in ALGORITHMS]
    tested = [each for each in algorithms if any(r.state != "not implemented" for c in columns for r in c.of(each.ids))]
    modules = {module for algorithm in algorithms for module in algorithm.modules}
    modules |= {module for case in cases for module in _modules(case, case.stages)}
    return render(
        Path(__file__).with_name("page.html.jinja"),
        title=f"moespec conformance: {total(reports)}",
        total=total(reports),
        reports=reports,
        totals=lambda report: total([report]),
        missed=missed,
        columns=columns,
        groups=_groups(columns),
        checked=lambda id: _groups([column for column in columns if id in column.results]),
        algorithms=algorithms,
        tested=tested,
        untested=[algorithm for algorithm in algorithms if algorithm not in tested],
        causes=causes,
        failures=_failures(columns, {case.id: case for case in cases}),
        reasons=_reasons,
        percent=lambda result: math.ceil(100 * result.fraction),
        flags=flags,
        ledger=LEDGER,
        legend=LEGEND,
        states=STATES,
        specification={
            module: inspect.getsource(importlib.import_module(f"moespec.spec.{module}")) for module in sorted(modules)
        },
    )


def _columns(reports: Sequence[Report]) -> list[Column]:
    """Return one column for each target, mode and dtype with results. The dtypes of a target and mode are adjacent."""
    columns: dict[tuple[str, str, str, str], Column] = {}
    for report in reports:
        for result in report.results:
            place = (report.interface, report.title, result.mode, result.dtype)
            column = columns.setdefault(place, Column(report, result.mode, result.dtype, {}))
            column.results[result.id] = result
    return [column for group in _groups(list(columns.values())) for column in group]


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Group the columns that have the same target and mode and differ only in dtype."""
    groups: dict[tuple[str, str, str], list[Column]] = {}
    for column in columns:
        groups.setdefault((column.report.interface, column.report.title, column.mode), []).append(column)
    return list(groups.values())


def _algorithm(name: str, cases: list[Case]) -> Algorithm:
    kinds = {column: [case.id for case in cases if case.kind in classes] for column, classes in COLUMNS.items()}
    return Algorithm(name, ALGORITHMS[name], cases, [case.id for case in cases], kinds, _modules_of(name, cases))


def _reasons(columns: Sequence[Column], id: str) -> dict[str, list[str]]:
    """Return the reasons for skipping a case, with the affected dtypes."""
    reasons: dict[str, list[str]] = {}
    for column in columns:
        if column.results[id].state not in ("pass", *FAILED):
            reasons.setdefault(column.results[id].first.message, []).append(column.dtype)
    return reasons


def _failures(columns: Sequence[Column], cases: Mapping[str, Case]) -> dict[str, list[dict[str, Any]]]:
    """Return the contents of all failures by case id."""
    failures: dict[str, list[dict[str, Any]]] = {}
    for column in columns:
        for result in column.results.values():
            if result.state in FAILED:
                failures.setdefault(result.id, []).append(_failure(column.report, cases[result.id], result))
    return failures


def _failure(report: Report, case: Case, result: CaseResult) -> dict[str, Any]:
    """Return the content of a failure: the modules that specify the stage, the command and code to reproduce it, and other outcomes."""
    stage = result.first.stage.partition("/")[0]
    if stage == "gradient" and case.gradients is not None:
        stage = case.gradients.stage
    modules = _modules(case, [each for each in case.stages if each.name == stage])
    return {
        "report": report,
        "result": result,
        "modules": modules or _modules_of(case.algorithm, [case]),
        "code": code(report, result, case),
        "command": command(report, result),
        "others": [f"{outcome.stage}: {outcome.state}" for outcome in result.outcomes if outcome is not result.first],
    }


def _modules(case: Case, stages: Iterable[Stage]) -> list[str]:
    """Return the specification's modules that define the names called by stages."""
    known = {stage.name: stage for stage in case.stages}
    paths = [path for stage in stages for path in call.names(stage, known, call.golden(case))]
    return sorted({_module(name) for path in paths for name in function(path).needs or (path,)} - {""})


def _module(path: str) -> str:
    name, _, rest = path.partition(".")
    if name == "ROUTERS":
        return f"routers.{rest.partition('.')[0]}" if rest and ":" not in rest else ""
    if name == "CAPACITY_RULES":
        return "algorithms.capacity"
    return getattr(spec, name).__module__.removeprefix("moespec.spec.") if name in spec.__all__ else ""


def _modules_of(algorithm: str, cases: Iterable[Case]) -> list[str]:
    """Return the modules that specify an algorithm."""
    if algorithm in spec.ROUTERS:
        return [f"routers.{algorithm}"]
    own = {_module(name) for name in ALGORITHMS[algorithm].functions} - {""}
    return sorted(own or {module for case in cases for module in _modules(case, case.stages)})
