"""JUnit's XML, which CI services show: a test for each case, dtype and mode."""

import re
from xml.etree import ElementTree

from moespec.conformance.check.results import FAILED, CaseResult
from moespec.conformance.report.matrix import failure
from moespec.conformance.report.report import Report

__all__ = ["junit"]


def junit(report: Report) -> str:
    """The text of the file. A case that is neither passed nor failed is skipped, with its state and reason.

    Problems besides the cases are failed tests, and a dtype that is not supported is one skipped test.
    """
    suites = ElementTree.Element("testsuites")
    tests = ElementTree.SubElement(suites, "testsuite", name=f"moespec conformance {_xml(report.title)}")
    for result in report.results:
        _add_case(tests, report, result)
    for problem in report.problems:
        test = _add(tests, "moespec.waivers", problem)
        ElementTree.SubElement(test, "failure", type="fail", message=_xml(problem))
    for lacking in report.unsupported:
        test = _add(tests, "moespec.dtypes", lacking.dtype)
        text = f"not supported ({lacking.cases} cases): {lacking.reason}"
        ElementTree.SubElement(test, "skipped", message=_xml(text))
    for key, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        tests.set(key, str(len(list(tests.iter(tag)))))
    tests.set("errors", "0")
    tests.set("time", f"{sum(result.seconds for result in report.results):.4f}")
    ElementTree.indent(suites, " ")
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(tests: ElementTree.Element, report: Report, result: CaseResult) -> None:
    test = _add(tests, f"moespec.{result.algorithm}", f"{result.id} [{result.dtype} {result.mode}]")
    if result.seconds:
        test.set("time", f"{result.seconds:.4f}")
    if result.state in FAILED:
        matches = [f"equals the known variant {match.text}" for match in report.matches_of(result)]
        message = f"first at {result.first.stage}: {result.first.message}"
        failed = ElementTree.SubElement(test, "failure", type=result.state, message=_xml(message))
        failed.text = _xml("\n".join([*matches, *failure(report, result)]))
    elif result.state != "pass":
        ElementTree.SubElement(test, "skipped", message=_xml(f"{result.state}: {result.first.message}"))


def _add(tests: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(tests, "testcase", classname=_xml(group), name=_xml(name))


def _xml(text: str) -> str:
    """The text without the characters that XML 1.0 does not have."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
