"""HTML pages in one style: reports of runs, and the page of the conformance suite. They need jinja2.

A page is one file without scripts, which loads nothing. All that a template is given is escaped.
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
    """Text without what a terminal obeys or a browser hides, such as the name of a class that was a folder's."""
    return printable(value) if type(value) is str else value


def breakable(text: str) -> Markup:
    """A name, with places where a line may break."""
    return Markup(re.sub(r"([._/,=])", r"\1<wbr>", str(escape(printable(text)))))


def inside(content: bytes, kind: str) -> str:
    """The address of a picture that has the picture, a file of this kind, inside."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def render(template: Path, **values: Any) -> str:
    """The page that a template makes of the values; it may extend those that are here."""
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
