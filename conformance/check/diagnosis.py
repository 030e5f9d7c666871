"""What is known of the failures of a report: known variants, ties in another order, words, and small tables."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.check.equal_scores import mark_reordered
from moespec.conformance.check.explain import explain_failures
from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.results import FAILED, CaseResult, Report, Table
from moespec.conformance.compare import ALL_DTYPES, precision, wrong
from moespec.conformance.format import Case, Value

__all__ = ["LARGEST", "MATRICES", "diagnosed"]

LARGEST, MATRICES = 8, 4
"""Rows and columns of a table, and tables of a result, at most."""


def diagnosed(report: Report, known: Known) -> Report:
    """The report with the known variants that its failures equal, and each failure with words and a small table."""
    cases, matches = list(known.cases.values()), match_variants(report.results, known)
    results = explain_failures(mark_reordered(report.results, cases), cases)
    tables = [replace(r, table=_table(r, known.cases[r.id])) if r.state in FAILED else r for r in results]
    return replace(report, results=tables, matches=matches)


def _table(result: CaseResult, case: Case) -> Table | None:
    stage, _, name = result.first.stage.partition("/")
    expected: dict[str, Value] = {}
    if stage == "gradient" and case.gradients is not None:
        expected, call = case.gradients.wrt, ""
    elif stage in {each.name for each in case.stages}:
        expected, call = case.stage(stage).outputs, case.stage(stage).call
    got = np.asarray(result.returned.get(stage, {}).get(name))
    if name not in expected or got.shape != expected[name].array.shape or got.dtype.kind not in "iufb":
        return None
    value, shape = expected[name], (1, 1, *got.shape)
    matrices = int(np.prod(shape[:-2]))
    if max(shape[-2:]) > LARGEST or matrices > MATRICES or not got.size:
        return None
    dtype = ALL_DTYPES[result.dtype]
    marked = wrong(value, got, precision(call, name, dtype) if call else dtype)
    a, b, c = (array.reshape(matrices, *shape[-2:]) for array in (value.array, got, marked))
    return Table(result.first.stage, _texts(a, b, c), _texts(b, a, c), c.tolist())


def _texts(array: NDArray[Any], other: NDArray[Any], marked: NDArray[Any]) -> list[list[list[str]]]:
    """The numbers, with as many digits as tell a wrong one from what it should be."""

    def text(number: Any, beside: Any, differs: Any) -> str:
        if array.dtype.kind != "f":
            return str(number)
        short = f"{number:.4g}"
        return f"{number:.17g}" if differs and short == f"{beside:.4g}" else short

    return [
        [[text(*cell) for cell in zip(*row, strict=True)] for row in zip(*matrix, strict=True)]
        for matrix in zip(array, other, marked, strict=True)
    ]
