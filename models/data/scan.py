"""Which pictures cannot be decoded: all of them are, by as many processes as are given."""

import functools

from tqdm import tqdm

from moespec.models.data.pictures import Pictures
from moespec.models.data.prefetch import Prefetcher
from moespec.models.errors import DataError

__all__ = ["SKIP", "broken"]

SKIP = "--data.broken skip leaves such pictures out"
"""What may be done about those that cannot be decoded."""
CHUNK = 64
"""Pictures that a worker decodes at a time."""


def broken(pictures: Pictures, *, workers: int) -> list[tuple[int, str]]:
    """The numbers of the pictures that cannot be decoded, in order, each with what is wrong and the name of its file."""
    found: list[tuple[int, str]] = []
    check = functools.partial(_check, pictures)
    with (
        Prefetcher(check, 0, -(-len(pictures) // CHUNK), ahead=2, workers=workers) as parts,
        tqdm(total=len(pictures), unit="image", desc="decoding", disable=None) as bar,
    ):
        for part, wrong in parts:
            found += wrong
            bar.update(min(CHUNK, len(pictures) - part * CHUNK))
    return found


def _check(pictures: Pictures, part: int) -> list[tuple[int, str]]:
    found = []
    for index in range(part * CHUNK, min((part + 1) * CHUNK, len(pictures))):
        try:
            pictures.picture(index)
        except DataError as error:
            found.append((index, str(error)))
    return found
