"""Measured results: the rows of the conformance matrix, and the results of other packages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generator.catalogue import ROOT
from moespec.conformance.check.results import COLUMNS, FAILED, CaseResult, Report
from moespec.conformance.peers.measure import counts, read_record
from moespec.conformance.report.matrix import cell
from moespec.conformance.report.report import distinct, read
from moespec.conformance.suite import digest, load


@dataclass(frozen=True)
class Row:
    """The results of one target for an algorithm in one dtype and mode, by matrix column."""

    target: str
    dtype: str
    mode: str
    cells: dict[str, str]
    states: dict[str, str]


@dataclass(frozen=True)
class Measured:
    """The suite's result for one package on one algorithm's cases.

    passed, failed, other: numbers of cases in float64. variants: known variants that match the package's results, with ledger ids.
    """

    package: str
    version: str
    passed: int
    failed: int
    other: int
    variants: list[tuple[str, str, str]]


def reports(paths: Sequence[Path]) -> list[Report]:
    """The reports at these paths. Every report must come from the committed vectors."""
    if not paths:
        return []
    cases, suite = load(), digest()
    return distinct({path: read(path, cases, suite) for path in paths})


def rows(found: Sequence[Report], algorithm: str) -> list[Row]:
    """The results for one algorithm, with one row for each target, dtype and mode."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for report in found:
        for result in report.results:
            if result.algorithm == algorithm:
                groups.setdefault((report.target, result.dtype, result.mode), []).append(result)
    table = []
    for place, results in groups.items():
        of = {column: [result for result in results if result.kind in kinds] for column, kinds in COLUMNS.items()}
        cells = {column: cell(mine) for column, mine in of.items()}
        states = {column: "fail" if any(r.state in FAILED for r in mine) else "pass" for column, mine in of.items()}
        table.append(Row(*place, cells, states))
    return table


@cache
def peers() -> tuple[dict[str, Any], ...]:
    """The records of the packages that the suite has checked."""
    return tuple(read_record(path) for path in sorted((ROOT / "conformance/reports").glob("peer-*.json")))


def measured(algorithm: str) -> list[Measured]:
    """The results of each package that implements any part of an algorithm."""
    rows = []
    for record in peers():
        functions = record["functions"].values()
        cases = [case for each in functions for case in each["cases"] if case["id"].split("/")[0] == algorithm]
        found = [variant for each in functions for variant in each["variants"] if variant["algorithm"] == algorithm]
        variants = {each["variant"]: (each["variant"], each["computes"], each["ledger"]) for each in found}
        passed, failed, other = counts(cases, "float64")
        if passed + failed:
            version = record["versions"][record["package"]]
            rows.append(Measured(record["package"], version, passed, failed, other, list(variants.values())))
    return rows
