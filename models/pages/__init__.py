"""Renders HTML pages in one style: reports of runs, and the page of the conformance suite. Requires jinja2.

A page is a single file that contains no scripts and loads no other files. All template values are escaped.
"""

import base64
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from moespec.models.shown import printable

__all__ = ["render"]


def _shown(value: Any) -> Any:
    """Escapes control and invisible characters in a template value, such as a class name that comes from the name of a folder."""
    return printable(value) if type(value) is str else value


def breakable(text: str) -> Markup:
    """Returns a text as HTML, with `<wbr>` where a line may break."""
    return Markup(re.sub(r"([._/,=])", r"\1<wbr>", str(escape(printable(text)))))


def inside(content: bytes, kind: str) -> str:
    """Returns a data URL that embeds a picture of type `kind`."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def render(template: Path, **values: Any) -> str:
    """Renders a template with `values`. A template may extend the templates in this folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"breakable": breakable, "inside": inside}
    return environment.get_template(template.name).render(values)
