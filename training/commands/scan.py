"""The command `moespec scan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from moespec.models.errors import DataError
from moespec.models.memory import check_limits
from moespec.models.options import option
from moespec.models.shown import on_one_line
from moespec.spec.ranges import Range
from moespec.training.commandline.parse import parse
from moespec.training.data.datasets import PICTURES
from moespec.training.data.pictures import Pictures
from moespec.training.data.picturesets import SKIP, broken

__all__ = ["main"]


@dataclass(frozen=True)
class ScanArguments:
    """Decode every image of a data set and list the unreadable images; exit with status 2 if an image is unreadable."""

    path: Path = option(positional=True)
    """folder of the data set"""
    data: Literal["folder", "webdataset", "huggingface", "pairs"] = "folder"
    """kind of data set"""
    workers: Annotated[int, Range(0, 1024, below=False)] = 0
    """worker processes that decode images; 0: decode in a thread of this process"""


def main(words: list[str]) -> None:
    """Prints the defect of each unreadable image of the data set, in order. Raises DataError if an image is unreadable."""
    given = parse("scan", ScanArguments, words)
    check_limits(workers=given.workers)
    classes, *parts = PICTURES[given.data](given.path)
    total, wrong = 0, 0
    for part in parts:
        if part is not None:
            pictures = Pictures(part.files, np.arange(len(part.labels)), size=1)
            print(*map(on_one_line, part.notes), sep="\n", end="\n" * bool(part.notes))
            texts = [on_one_line(text) for _, text in broken(pictures, workers=given.workers)]
            print(*texts, sep="\n", end="\n" if texts else "")
            total, wrong = total + len(pictures), wrong + len(texts)
    if wrong:
        raise DataError(f"{given.path}: {wrong} of {total} images cannot be read; {SKIP}")
    print(f"{given.path}: all {total} images {f'of {len(classes)} classes ' if classes else ''}can be read")
