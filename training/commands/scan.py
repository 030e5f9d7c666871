"""The command `moespec scan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from moespec.models.errors import DataError
from moespec.models.memory import check_limits
from moespec.models.options import option
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.training.commandline.parse import parse
from moespec.training.data.datasets import PICTURES
from moespec.training.data.pictures import Pictures
from moespec.training.data.picturesets import SKIP, broken

__all__ = ["main", "scan_command"]


@dataclass(frozen=True)
class ScanArguments:
    """Decode every picture of a data set and name those that cannot be read; the exit status is then 2."""

    path: Path = option(positional=True)
    """folder of the data set"""
    data: Literal["folder", "webdataset", "huggingface", "pairs"] = "folder"
    """kind of data set"""
    workers: int = 0
    """processes that decode; 0 for a thread of this one"""

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise ConfigError(f"workers={self.workers!r}: expected a number from 0 to 1024")


def main(words: list[str]) -> None:
    """Runs the command."""
    parsed = parse("scan", ScanArguments, words)
    scan_command(parsed.path, parsed.data, workers=parsed.workers)


def scan_command(path: Path, data: str, *, workers: int) -> None:
    """Prints what is wrong with each picture of the data set, in order. Raises DataError if any cannot be decoded."""
    check_limits(workers=workers)
    classes, *parts = PICTURES[data](path)
    total, wrong = 0, 0
    for part in parts:
        if part is not None:
            pictures = Pictures(part.files, np.arange(len(part.labels)), size=1)
            print(*map(on_one_line, part.notes), sep="\n", end="\n" * bool(part.notes))
            texts = [on_one_line(text) for _, text in broken(pictures, workers=workers)]
            print(*texts, sep="\n", end="\n" if texts else "")
            total, wrong = total + len(pictures), wrong + len(texts)
    if wrong:
        raise DataError(f"{path}: {wrong} of {total} pictures cannot be read; {SKIP}")
    print(f"{path}: all {total} pictures {f'of {len(classes)} classes ' if classes else ''}can be read")
