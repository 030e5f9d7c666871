"""A report with what is known of its failures."""

from dataclasses import replace

from moespec.conformance.check.equal_scores import judged
from moespec.conformance.check.explain import explained
from moespec.conformance.check.match_variant import Known, recognise
from moespec.conformance.report.report import Report
from moespec.conformance.report.tables import shown

__all__ = ["diagnosed"]


def diagnosed(report: Report, known: Known) -> Report:
    """The report with the known variants that its failures equal, ties in another order, words and small tables."""
    cases, matches = list(known.cases.values()), recognise(report.results, known)
    return replace(report, results=shown(explained(judged(report.results, cases), cases), cases), matches=matches)
