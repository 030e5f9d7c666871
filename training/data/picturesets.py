"""Builds data sets from pictures of any size and source.

Every picture's header is read at the start. Each picture is decoded when a batch needs it. Either the shorter side is resized
and the middle square cropped, or a random crop is resized. All images have three channels.
"""

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.training.data.captions import Captions
from moespec.training.data.dataset import Dataset, Split, held_out
from moespec.training.data.options import DataConfig
from moespec.training.data.pictures import Files, Pictures
from moespec.training.data.prefetch import Prefetcher
from moespec.training.progress_bar import Bar

__all__ = ["SKIP", "First", "Part", "broken", "load_pictures"]

SHOWN = 5
"""Number of files that a note lists."""
SKIP = "--data.broken skip skips such images"
"""Advice for pictures that cannot be decoded."""
CHUNK = 64
"""Number of pictures that a worker decodes at a time."""
First = Callable[[Dataset], None]


@dataclass(frozen=True)
class Part:
    """The files of one split and their labels. With captions, the label of a pair is the number of its picture."""

    files: Files
    labels: NDArray[np.int64]
    captions: Captions | None = None
    notes: tuple[str, ...] = ()


def load_pictures(
    source: Path,
    classes: tuple[str, ...],
    part: Part,
    held: Part | None,
    *,
    size: int,
    config: DataConfig,
    first: First | None = None,
) -> Dataset:
    """Returns a data set with images of `size` x `size` pixels. held: the validation split; if None, `held_out` splits `part`.

    first: a function to call with the data set before any picture is read. Raises DataError for an empty split. Unless `config.broken`
    is "skip", raises DataError for a file without an image header; later, reading a broken file raises DataError.
    """
    once = held is part
    train, held_rows = np.arange(len(part.labels)), np.arange(0 if held is None else len(held.labels))
    if held is None:
        if part.captions is None:
            kept_back = held_out(part.labels, config.validation_share)
        else:  # splits by picture, so that all pairs of a picture are in the same split
            kept_back = held_out(np.zeros(part.labels.max() + 1, np.int64), config.validation_share)[part.labels]
        share, what = f"{config.validation_share:g}", "no class has" if classes else "there are not"
        if not kept_back.any() or kept_back.all():
            raise DataError(f"{source}: {what} enough images to hold out {share} of them")
        if classes and len(np.unique(part.labels[~kept_back])) < len(np.unique(part.labels)):
            raise DataError(f"{source}: holding out {share} of each class leaves a class without training images")
        held, held_rows, train = part, np.flatnonzero(kept_back), np.flatnonzero(~kept_back)
    notes = [*part.notes, *(() if held is part else held.notes)]
    lost: list[str] = []
    clear = 0
    advice = f"; {SKIP}, and moespec scan {shlex.quote(str(source))} --data {config.name} lists all broken ones"
    chosen = [(part, train), (held, held_rows)][: 2 - once]

    def pictures(of: Part, rows: NDArray[np.int64]) -> Pictures:
        return Pictures(of.files, rows, size, config.resize, config.background, advice=advice)

    def dataset() -> Dataset:
        splits = [_split(of, rows, pictures(of, rows)) for of, rows in chosen]
        about: Any = {"notes": tuple(notes), "held_out": held is part}
        return Dataset(source.name, splits[0], splits[-1], classes, (size, size, 3), 255, **about)

    if first is not None:
        first(dataset())
    for number, (of, rows) in enumerate(chosen):
        found = pictures(of, rows)
        if config.broken == "skip" and (failures := [n for n, _ in broken(found, workers=config.workers)]):
            lost += map(found.name, failures)
            chosen[number] = of, np.delete(rows, failures)
            found = pictures(*chosen[number])
        clear += sum(found.transparent(n) for n in Bar(range(len(found)), unit="image", desc="headers"))
    if lost:
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        files_are = "1 file is" if len(lost) == 1 else f"{len(lost)} files are"
        notes.append(f"{files_are} unreadable and skipped: {', '.join(lost[:SHOWN])}{more}")
    if clear:
        behind = f"{config.background} fills the background (data.background)"
        notes.append(f"{clear} picture{'s' * (clear > 1)} may be partly transparent; {behind}")
    made = dataset()
    empty = set(range(len(classes))) - set(made.train.labels.tolist())
    if empty or not (len(made.train) and len(made.validation)):
        what = f"no training image of class {classes[min(empty)]!r}" if empty else "no training or no validation image"
        raise DataError(f"{source}: {what} is left after skipping broken files")
    return made


def broken(pictures: Pictures, *, workers: int) -> list[tuple[int, str]]:
    """Returns the numbers of the pictures that cannot be decoded, in order, each with its error."""
    failures: list[tuple[int, str]] = []
    check = functools.partial(_check, pictures)
    with (
        Bar(total=len(pictures), unit="image", desc="decoding") as bar,
        Prefetcher(check, 0, -(-len(pictures) // CHUNK), ahead=2, workers=workers) as parts,
    ):
        for part, wrong in parts:
            failures += wrong
            bar.update(min(CHUNK, len(pictures) - part * CHUNK))
    return failures


def _check(pictures: Pictures, part: int) -> list[tuple[int, str]]:
    failures = []
    for index in range(part * CHUNK, min((part + 1) * CHUNK, len(pictures))):
        try:
            pictures.picture(index)
        except DataError as error:
            failures.append((index, str(error)))
    return failures


def _split(of: Part, rows: NDArray[np.int64], pictures: Pictures) -> Split:
    captions = None if of.captions is None else of.captions[rows]
    return Split(pictures.read, of.labels[rows], pictures.picture, captions, pictures=pictures)
