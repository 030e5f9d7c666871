"""Checks and stores captions of images. Captions are untrusted texts, and a data set may have millions of captions."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError

__all__ = ["LONGEST", "Captions", "caption", "captions_of", "listed"]

Captions = NDArray[Any]
"""Texts in NumPy's `StringDType`, which takes little more memory than their UTF-8 bytes."""

LONGEST = 2**16
"""Maximum number of characters in a caption."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half of a UTF-16 surrogate pair, which JSON can contain but UTF-8 cannot."""


def caption(value: object, name: str) -> str:
    """Converts text or UTF-8 bytes to a one-line caption. name: the name of the caption in errors.

    A control character or a run of white space becomes one space. Invalid UTF-8 becomes U+FFFD. Raises DataError for a value that is not
    text, an empty text, or a text longer than `LONGEST` characters.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8-sig", errors="replace")
    if not isinstance(value, str):
        raise DataError(f"{name}: expected a caption (text), got {value!r:.40}")
    if len(value) > LONGEST:
        raise DataError(f"{name}: expected a caption of at most {LONGEST} characters")
    line = " ".join(SURROGATE.sub("\ufffd", CONTROL.sub(" ", value)).split())
    if not line:
        raise DataError(f"{name}: empty caption")
    return line


def listed(value: object, name: str) -> list[str]:
    """Returns the list of an image's captions from one caption or a list of captions. Raises DataError like `caption`."""
    return [caption(each, name) for each in (value if isinstance(value, list) else [value])]


def captions_of(texts: Iterable[str]) -> Captions:
    """Converts texts to an array of dtype `StringDType`."""
    return np.array(list(texts), np.dtypes.StringDType())
