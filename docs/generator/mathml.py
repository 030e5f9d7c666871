"""Formulas as MathML, which browsers render without scripts. If scripts are enabled, MathJax renders the formulas more evenly.

A Sphinx extension that converts LaTeX in `math` directives to MathML during the build. MathJax is one file, which
docs/conf.py copies into the site, so no page loads external resources.
"""

from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(writer: Any, node: Any) -> None:
    """Write an inline formula."""
    writer.body.append(convert(node.astext()))
    raise SkipNode


def block(writer: Any, node: Any) -> None:
    """Write a display formula."""
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_js_file("mml-svg.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
