"""The pages of a run, a study and predictions, in the style of `moespec.models.pages`."""

from pathlib import Path
from typing import Any

from moespec.models import pages

__all__ = ["render"]


def render(name: str, **values: Any) -> str:
    """Fills the template `name` with the values and returns the page."""
    return pages.render(Path(__file__).parent / name, **values)
