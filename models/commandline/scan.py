"""The command `moespec scan`: decodes every picture of a data set, and names those that cannot be."""

from pathlib import Path

import numpy as np

from moespec.models.data.datasets import PICTURES
from moespec.models.data.pictures import Pictures
from moespec.models.data.scan import SKIP, broken
from moespec.models.errors import DataError

__all__ = ["scan_command"]


def scan_command(path: Path, data: str, *, workers: int) -> None:
    """Prints what is wrong with each picture of the data set, in order. Raises DataError if any cannot be decoded."""
    classes, *parts = PICTURES[data](path)
    total, wrong = 0, 0
    for part in parts:
        if part is not None:
            pictures = Pictures(part.files, np.arange(len(part.labels)), size=1)
            texts = [text for _, text in broken(pictures, workers=workers)]
            print(*texts, sep="\n", end="\n" if texts else "")
            total, wrong = total + len(pictures), wrong + len(texts)
    if wrong:
        raise DataError(f"{path}: {wrong} of {total} pictures cannot be read; {SKIP}")
    print(f"{path}: all {total} pictures of {len(classes)} classes can be read")
