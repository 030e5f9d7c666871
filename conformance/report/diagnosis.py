"""A report with what is known of its failures."""

from collections.abc import Sequence
from dataclasses import replace

from moespec.conformance.check.equal_scores import judged
from moespec.conformance.format import Case
from moespec.conformance.report.report import Report
from moespec.conformance.report.tables import shown

__all__ = ["diagnosed"]


def diagnosed(report: Report, cases: Sequence[Case]) -> Report:
    """The report with the known variants that its failures equal, ties in another order, and small tables."""
    from moespec.conformance.check.recognise import Known, recognise

    matches = recognise(report.results, Known(cases))
    return replace(report, results=shown(judged(report.results, cases), cases), matches=matches)
