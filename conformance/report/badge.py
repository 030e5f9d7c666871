"""The badge: how many cases pass, as an SVG that needs no service."""

from collections.abc import Sequence
from html import escape

from moespec.conformance.report.report import Report

__all__ = ["badge"]

COLOURS = {"failed": "#b3261e", "passed": "#1a7f37", "nothing": "#6e7781"}
WIDTH = 6.2
"""Pixels of a character of 11 pixels' height; `textLength` makes every font as wide."""


def badge(reports: Sequence[Report]) -> str:
    """The text of the SVG: red if anything failed, grey if nothing passed, else green."""
    passed, failed = (sum(report.counts[i] for report in reports) for i in (0, 1))
    label = "moespec conformance"
    value = f"{passed} passed" + (f", {failed} failed" if failed else "")
    colour = COLOURS["failed" if failed else "passed" if passed else "nothing"]
    left, right = (round(WIDTH * len(text)) + 12 for text in (label, value))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">
<title>{escape(label)}: {escape(value)}</title>
<rect width="{left + right}" height="20" rx="3" fill="#3d444d"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="{left - 12}">{escape(label)}</text>
<text x="{left + 6}" y="14" textLength="{right - 12}">{escape(value)}</text>
</g>
</svg>
"""
