"""Decoded images in a folder, so that they are decoded once for all epochs and runs.

The images of a part of a data set, middle squares or whole, are written into a file, which all processes map into memory and
share. The name of the file is a digest of what its bytes depend on: the sources with their sizes and times, and how they are
decoded. After the pixels come a CRC-32 of each image, which is checked whenever the image is read, and a line of JSON with the
version of moespec and a checksum of the CRCs. Files of version 0.1 end with the pixels and are not checked.
"""

import functools
import hashlib
import math
import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moespec.models.errors import DataError
from moespec.models.files import signed, unfinished, unsigned
from moespec.training.data.dataset import Split, as_picture
from moespec.training.data.pictures import Pictures, middle
from moespec.training.data.prefetch import Prefetcher
from moespec.training.progress_bar import Bar
from moespec.version import version

__all__ = ["cached"]

CHUNK = 64
"""Pictures that a worker decodes at a time."""
FORMAT = "moespec decoded pictures 1"


@dataclass(frozen=True)
class Stored:
    """A file of decoded images: where each begins, its height and width, and its CRC-32. Pickled without the pixels."""

    path: Path
    places: NDArray[np.int64]
    sides: NDArray[np.int64]
    pictures: Pictures
    sums: NDArray[np.uint32] | None

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.path, self.places, self.sides, self.pictures, self.sums)

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """All bytes, mapped into memory."""
        return np.memmap(self.path, np.uint8, "r")

    def pixels_of(self, index: int) -> NDArray[np.uint8]:
        """One image `(height, width, channels)`. Raises DataError, naming the file, if it is damaged there."""
        shape, start = (*self.sides[index].tolist(), self.pictures.channels), int(self.places[index])
        pixels = self.pixels[start : start + math.prod(shape)]
        if self.sums is not None and zlib.crc32(pixels.data) != self.sums[index]:
            name = self.pictures.name(index)
            raise DataError(f"{self.path}: damaged, not the pixels of {name}; without the file all are decoded anew")
        return pixels.reshape(shape)

    def whole(self, index: int) -> Image.Image:
        """One picture, as `Pictures.picture` decodes it."""
        return as_picture(self.pixels_of(index))

    def middles(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Middle squares of whole pictures, as `Pictures.read` has them."""
        size, resize = self.pictures.size, self.pictures.resize
        squares = [middle(self.whole(int(index)), size, resize) for index in indices]
        return np.stack(squares).reshape(len(indices), size, size, self.pictures.channels)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Pictures that are middle squares already."""
        return np.stack([self.pixels_of(int(index)) for index in indices])


def cached(pictures: Pictures, labels: NDArray[np.int64], folder: Path, *, whole: bool, workers: int) -> Split:
    """The images as a split that reads them from a file in the folder, which is written if it is missing.

    whole: keep whole images, for random crops, instead of middle squares. Raises DataError when the folder cannot be written to
    or has too little room, or an image cannot be decoded.
    """
    kind = "whole" if whole else f"{pictures.size} {pictures.resize}"
    text = f"{FORMAT} {kind} {pictures.background} {pictures.channels} {pictures.files.stamp()} "
    digest = hashlib.sha256(text.encode() + pictures.chosen.tobytes()).hexdigest()[:32]
    sides = np.empty((len(pictures), 2), np.int64)
    path = folder / f"{digest}.pixels"
    if whole:
        sides[:] = [pictures.sides(index) for index in range(len(pictures))]
    else:
        sides[:] = pictures.size
    ends = np.cumsum(sides.prod(axis=1) * pictures.channels)
    places = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    sums, without_sums = _sums(path, pictures, int(ends[-1])), path.is_file() and path.stat().st_size == ends[-1]
    if sums is None and not without_sums:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, pictures, int(ends[-1]), whole=whole, workers=workers)
        except OSError as error:
            raise DataError(f"data.cache={str(folder)!r}: cannot be written to ({error})") from error
        sums = _sums(path, pictures, int(ends[-1]))
    stored = Stored(path, places, sides, pictures, sums)
    return Split(stored.middles, labels, stored.whole) if whole else Split(stored.read, labels, pictures.picture)


def _sums(path: Path, pictures: Pictures, size: int) -> NDArray[np.uint32] | None:
    """The checksums after the pixels, or None if they are damaged or there are none."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(size)
        sums, record = file.read(4 * len(pictures)), file.read(2**16)
        if unsigned(record).get("sums") == hashlib.sha256(sums).hexdigest():
            return np.frombuffer(sums, "<u4")
    return None


def _write(path: Path, pictures: Pictures, size: int, *, whole: bool, workers: int) -> None:
    """Decodes all pictures into a file, which has its name only when it is complete."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise DataError(f"data.cache={str(path.parent)!r}: {size:,} bytes of decoded pictures, but {free:,} are free")
    written, sums = unfinished(path), []
    decode = functools.partial(_decoded, pictures, whole)
    try:
        with (
            written.open("xb") as file,
            Prefetcher(decode, 0, -(-len(pictures) // CHUNK), ahead=2, workers=workers) as parts,
            Bar(total=len(pictures), unit="image", desc="cache") as bar,
        ):
            for _, part in parts:
                for pixels in part:
                    sums.append(zlib.crc32(data := np.ascontiguousarray(pixels).data))
                    file.write(data)
                bar.update(len(part))
            if file.tell() != size:
                raise DataError(f"data.cache={str(path.parent)!r}: a picture has another size than its header says")
            file.write(after := np.array(sums, "<u4").tobytes())
            record = {"format": FORMAT, "version": version(), "sums": hashlib.sha256(after).hexdigest()}
            file.write(signed(record, indent=None))
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def _decoded(pictures: Pictures, whole: bool, part: int) -> list[NDArray[np.uint8]]:
    indices = np.arange(part * CHUNK, min((part + 1) * CHUNK, len(pictures)))
    return [np.asarray(pictures.picture(int(i))) for i in indices] if whole else list(pictures.read(indices))
