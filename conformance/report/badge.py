"""Renders the badge, which shows how many cases pass, as a self-contained SVG and as JSON for shields.io."""

import json
from collections.abc import Sequence
from html import escape

from moespec.conformance.check.results import Report, covered

__all__ = ["badge", "shields"]

COLOURS = {"failed": "#b3261e", "part": "#9a6700", "passed": "#1a7f37", "nothing": "#6e7781"}
LABEL = "moespec conformance"
WIDTH = 6.2
"""The width of a character in pixels at a font size of 11 pixels. The SVG attribute `textLength` enforces this width in every font."""


def badge(reports: Sequence[Report]) -> str:
    """Return the text of the SVG. The badge is red if anything failed, grey if nothing passed, yellow if a
    case of the chosen rows was not run, is not implemented or is waived, and green otherwise."""
    value, colour = _message(reports)
    left, right = (round(WIDTH * len(text)) + 12 for text in (LABEL, value))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">
<title>{escape(LABEL)}: {escape(value)}</title>
<rect width="{left + right}" height="20" rx="3" fill="#3d444d"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="{left - 12}">{escape(LABEL)}</text>
<text x="{left + 6}" y="14" textLength="{right - 12}">{escape(value)}</text>
</g>
</svg>
"""


def shields(reports: Sequence[Report]) -> str:
    """Return the JSON of a shields.io endpoint badge (https://shields.io/badges/endpoint-badge), with the SVG's text and colour."""
    message, colour = _message(reports)
    return json.dumps({"schemaVersion": 1, "label": LABEL, "message": message, "color": colour}) + "\n"


def _message(reports: Sequence[Report]) -> tuple[str, str]:
    """Return the message and colour of the badge."""
    (passed, cases, missing), failed = covered(reports), sum(report.counts[1] for report in reports)
    text = f"{passed} of {cases} cases passed" + (f", {failed} failed" if failed else "")
    part = missing or any(result.state == "waived" for report in reports for result in report.results)
    return text, COLOURS["failed" if failed else "nothing" if not passed else "part" if part else "passed"]
