"""Additions to Sphinx's HTML: a page description for search engines, and each table cell's column heading.

A Sphinx extension. `site.css` shows the rows of a table as cards on a phone, each cell below its heading.
"""

import re
from html import escape, unescape
from itertools import chain, repeat
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SITE = "The executable specification of mixture-of-experts routing for vision, with backends for JAX and torch."


def description(document: nodes.document | None) -> str:
    """A page's first sentence, or the site's description if it has none."""
    first = next(document.findall(nodes.paragraph), None) if document else None
    text = " ".join(first.astext().split()) if first else SITE
    return re.split(r"(?<=[a-z\d)\]][.:]) (?=[A-Z])", text, maxsplit=1)[0].removesuffix(":")


def labelled(html: str) -> str:
    """Adds each table cell's column heading as `data-label`, and permits line breaks after `_`, `.` and `/` in tables."""
    return re.sub(r"<table\b.*?</table>", lambda match: _labelled(match[0]), html, flags=re.DOTALL)


def _labelled(table: str) -> str:
    top, mark, body = table.partition("</thead>")
    headings = [escape(plain(text)) for text in re.findall(r"<th\b[^>]*>(.*?)</th>", top, re.DOTALL)]
    rows = "</tr>".join(_row(row, headings) for row in body.split("</tr>"))
    return re.sub(r"(?<=[_./])(?=[A-Za-z][^<>]*<)", "<wbr>", top + mark + rows) if mark else table


def _row(row: str, headings: list[str]) -> str:
    labels = chain(headings, repeat(""))
    return re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels)}"', row)


def plain(html: str) -> str:
    """The plain text of HTML."""
    return unescape(re.sub(r"<[^>]+>", "", html)).strip()


def add(app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None) -> None:
    """Add the description and the labels to the page template's context."""
    described = f'<meta name="description" content="{escape(description(document))}">'
    context["metatags"] = context.get("metatags", "") + described
    context["body"] = labelled(context.get("body") or "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("html-page-context", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
