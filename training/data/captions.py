"""Captions of pictures: third-party texts, maybe millions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError

__all__ = ["LONGEST", "Captions", "caption", "listed"]

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
        raise DataError(f"{name}: expected a caption, a text, got {value!r:.40}")
    if len(value) > LONGEST:
        raise DataError(f"{name}: a caption of more than {LONGEST} characters")
    line = " ".join(SURROGATE.sub("\ufffd", CONTROL.sub(" ", value)).split())
    if not line:
        raise DataError(f"{name}: an empty caption")
    return line


def listed(value: object, name: str) -> list[str]:
    """The captions of a picture, which has one or a list of them. Raises DataError as `caption` does."""
    return [caption(each, name) for each in (value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class Captions:
    """Texts as bytes of UTF-8, one after the other, and where each ends."""

    text: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Captions":
        """These texts."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def check(self, count: int) -> None:
        """ValueError unless they are so many texts."""
        text, ends = self.text, self.ends
        if text.dtype != np.uint8 or text.ndim != 1 or ends.dtype != np.int64 or ends.shape != (count,):
            raise ValueError("dtypes or shapes of captions")
        if (np.diff(ends, prepend=0) < 1).any() or ends[-1] != len(text) or (text[ends[:-1]] & 0xC0 == 0x80).any():
            raise ValueError("ends of captions, or one within a character")
        text.tobytes().decode()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        place = range(len(self))[index]
        start = int(self.ends[place - 1]) if place else 0
        return self.text[start : int(self.ends[place])].tobytes().decode()

    def chosen(self, rows: NDArray[np.int64]) -> "Captions":
        """Some of them, by number."""
        return Captions.of(self[int(row)] for row in rows)
