"""The pages of a run, a study and predictions, in the style of `moespec.models.pages`."""

from pathlib import Path
from typing import Any

from moespec.models import pages

__all__ = ["render"]


def render(name: str, **values: Any) -> str:
    """The page that the template `name` produces from the values."""
    return pages.render(Path(__file__).parent / name, **values)
