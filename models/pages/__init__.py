"""HTML pages in one style: reports of runs, and the page of the conformance suite. Requires jinja2.

A page is a single file without scripts that loads nothing. All template values are escaped.
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
    """Escapes characters that a terminal interprets or a browser hides, as in a class name that comes from a folder."""
    return printable(value) if type(value) is str else value


def breakable(text: str) -> Markup:
    """A name with places for line breaks."""
    return Markup(re.sub(r"([._/,=])", r"\1<wbr>", str(escape(printable(text)))))


def inside(content: bytes, kind: str) -> str:
    """A data URL that embeds a picture of type `kind`."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def render(template: Path, **values: Any) -> str:
    """The page that a template renders from the values. A template may extend the ones in this folder."""
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
