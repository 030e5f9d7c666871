"""Formulas as MathML, which browsers set without any script; where scripts run, MathJax sets them again, more evenly.

A Sphinx extension: LaTeX in a `math` directive becomes MathML when the site is built. MathJax is one file, which docs/conf.py
copies into the site, so that no page loads anything from elsewhere.
"""

from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(writer: Any, node: Any) -> None:
    """Write a formula within a line."""
    writer.body.append(convert(node.astext()))
    raise SkipNode


def block(writer: Any, node: Any) -> None:
    """Write a formula on a line of its own."""
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_js_file("mml-svg.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
