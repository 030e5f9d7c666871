"""Captions of images: third-party texts, possibly millions."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError

__all__ = ["LONGEST", "Captions", "caption", "captions_of", "listed"]

Captions = NDArray[Any]
"""Texts, of NumPy's `StringDType`, which takes little more memory than their bytes in UTF-8."""

LONGEST = 2**16
"""Characters of a caption; what is longer is not a caption."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half a character of UTF-16, as JSON may have it, which no UTF-8 has."""


def caption(value: object, name: str) -> str:
    """A caption of one line, from text or from bytes in UTF-8; `name` is what errors call it.

    Control characters and runs of white space become a space, what is not UTF-8 becomes U+FFFD. Raises DataError for what
    is not a text, an empty one, or one of more than `LONGEST` characters.
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
    """The captions of a picture, which has one or a list of them. Raises DataError as `caption` does."""
    return [caption(each, name) for each in (value if isinstance(value, list) else [value])]


def captions_of(texts: Iterable[str]) -> Captions:
    """These texts as an array."""
    return np.array(list(texts), np.dtypes.StringDType())
