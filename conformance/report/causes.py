"""Failures by what they have in common: a known variant, an exception, a place."""

from dataclasses import dataclass, field

from moespec.conformance.check.results import FAILED, CaseResult, Report

__all__ = ["Cause", "causes"]


@dataclass
class Cause:
    """What some failures have in common, in a sentence, and these failures."""

    text: str
    results: list[CaseResult] = field(default_factory=list)

    @property
    def first(self) -> CaseResult:
        """The first of them."""
        return self.results[0]

    @property
    def in_words(self) -> bool:
        """Whether it is said what is the matter, and not only where."""
        return self.first.state == "reordered" or (
            ": " in self.first.explanation and self.first.explanation in self.text
        )

    @property
    def more(self) -> str:
        """How many there are besides the first, in words, or an empty string."""
        count = len(self.results) - 1
        return f", and {count} more like it" if count else ""


def causes(report: Report) -> list[Cause]:
    """The failures of a report by their causes: what is named first, then exceptions, then what is not explained."""
    by_cause: dict[tuple[int, str, str], Cause] = {}
    for result in report.results:
        if result.state in FAILED:
            rank, text = _cause(report, result)
            trace = result.first.trace if rank == EXCEPTION else ""
            by_cause.setdefault((rank, text, trace), Cause(text)).results.append(result)
    return [by_cause[key] for key in sorted(by_cause, key=lambda key: key[0])]


VARIANT, ORDER, REPEAT, EXCEPTION, INVALID, UNKNOWN = range(6)


def _cause(report: Report, result: CaseResult) -> tuple[int, str]:
    """The rank of a cause, and its text."""
    first, matches = result.first, report.matches_of(result)
    if result.state == "reordered":
        return ORDER, f"{result.algorithm}: differs only in the order of equal scores"
    if result.state == "error":
        return EXCEPTION, first.message
    if first.message.startswith("not repeatable"):
        return REPEAT, f"{result.algorithm}: two calls do not return the same"
    if result.kind == "negative":
        return INVALID, f"{result.algorithm}: error cases"
    if matches:
        names = " or ".join(f"{match.variant}: {match.computes}" for match in matches)
        part = "" if any(match.agree == match.of for match in matches) else " (a part of it)"
        return VARIANT, f"{result.algorithm}: equals the known variant {names}{part}"
    return UNKNOWN, f"{result.algorithm}: {result.explanation or f'not explained, first at {first.stage}'}"
