"""Picture files as they look, in eight bits: what a viewer shows on a white page, the right way up.

| in the file | what is made of it |
|---|---|
| 16 bits of grey | scaled to 8: 65535 is white |
| a palette, transparency | its colours, on white, or another background |
| an orientation (EXIF) | turned and mirrored as it says |
| CMYK, YCbCr, HSV | RGB |
| several frames | the first |
| floating-point numbers, integers of 32 bits | an error: which number is white is not known |
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from moespec.models.errors import DataError
from moespec.models.files import regular

__all__ = ["ENDINGS", "Files", "Folder", "Pictures", "check_header", "read_image"]

FORMATS = {
    **{"BMP": (".bmp",), "GIF": (".gif",), "JPEG": (".jfif", ".jpeg", ".jpg"), "PNG": (".png",), "PPM": (".ppm",)},
    **{"TIFF": (".tif", ".tiff"), "WEBP": (".webp",)},
}
"""What Pillow may take a picture for, whatever its name says: of what else it knows, some starts other programs."""
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
WHITE_OF_16_BITS = 65535
ORIENTATION, SWAPPED = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF, and its values that turn a picture by a quarter."""


class Files(Protocol):
    """Where pictures come from: files by number. It is pickled for worker processes."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What errors call the file."""

    def open(self, index: int) -> Path | BinaryIO:
        """What Pillow opens."""

    def stamp(self) -> str:
        """A text that changes when the files do."""

    def known(self, index: int) -> str:
        """What is known of a file without reading it, and is the same on another machine: its name in the data, its size."""


@dataclass(frozen=True)
class Folder:
    """Files below a folder. Names are kept as text relative to it, as there may be millions."""

    root: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return str(self.root / self.names[index])

    def open(self, index: int) -> Path:
        return self.root / self.names[index]

    def stamp(self) -> str:
        digest = hashlib.sha256(str(self.root.resolve()).encode())
        for name in self.names:
            status = (self.root / name).stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def known(self, index: int) -> str:
        return f"{self.names[index]} {os.stat(os.path.join(self.root, self.names[index])).st_size}"


@dataclass(frozen=True)
class Pictures:
    """Some of the pictures of `files`, `chosen` by number, as images `(size, size, channels)`.

    resize: length of the shorter side in pixels before the middle square of `size` is cut out; 0 for `size`.
    background: colour behind what is transparent. advice: what the error of a damaged file ends with.
    """

    files: Files
    chosen: NDArray[np.int64]
    size: int
    resize: int = 0
    background: str = "white"
    channels: int = 3
    advice: str = ""

    def __len__(self) -> int:
        return len(self.chosen)

    def of(self, chosen: NDArray[np.int64]) -> "Pictures":
        """Others of the same files."""
        return replace(self, chosen=chosen)

    def name(self, index: int) -> str:
        """The file of a picture."""
        return self.files.name(int(self.chosen[index]))

    def picture(self, index: int) -> Image.Image:
        """A whole picture, of mode RGB, or L if there is one channel. Raises DataError naming a file that is damaged."""
        with self._opened(index) as file:
            return _shown(file, self.channels, self.background)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The middle squares of pictures. Raises DataError naming a file that is damaged."""
        images = np.empty((len(indices), self.size, self.size, self.channels), np.uint8)
        for image, index in zip(images, indices, strict=True):
            with self._opened(int(index)) as file:  # decoding and resizing: of some files the error shows there
                picture = _shown(file, self.channels, self.background)
                image[...] = middle(picture, self.size, self.resize).reshape(image.shape)
        return images

    def head(self, index: int, length: int) -> bytes:
        """The first bytes of a file, as they are."""
        source = self.files.open(int(self.chosen[index]))
        with open(source, "rb", opener=regular) if isinstance(source, Path) else source as file:
            return file.read(length)

    def transparent(self, index: int) -> bool:
        """Whether there may be transparency, by the header. Raises DataError as `check_header` does."""
        with self._opened(index) as file:
            return _transparent(file)

    def sides(self, index: int) -> tuple[int, int]:
        """The height and width of a whole picture as it is to be seen: an orientation of EXIF may swap them."""
        with self._opened(index) as file:
            width, height = file.size
            return (width, height) if file.getexif().get(ORIENTATION, 1) in SWAPPED else (height, width)

    @contextmanager
    def _opened(self, index: int) -> Iterator[Image.Image]:
        number = int(self.chosen[index])
        with _opened(self.files.name(number), self.files.open(number), self.advice) as file:
            yield file


def check_header(path: Path) -> None:
    """DataError naming a file that is not a picture, or has pixels of a kind that `read_image` does not read.

    Only the header is read, so a picture that is damaged further down passes.
    """
    with _opened(str(path), path):
        pass


def read_image(
    path: Path, size: int, *, channels: int = 3, resize: int = 0, background: str = "white"
) -> NDArray[np.uint8]:
    """The middle square of a picture, resized to `(size, size, channels)` uint8; one channel is grey, three are RGB.

    Raises DataError naming a file that is not there or cannot be decoded.
    """
    if channels not in (1, 3):
        raise DataError(f"{path}: a picture is grey or RGB, but the model takes {channels} channels")
    files = Folder(path.parent, (path.name,))
    images = Pictures(files, np.zeros(1, np.int64), size, resize, background, channels).read(np.zeros(1, np.int64))
    return images.reshape(size, size, channels)


def middle(image: Image.Image, size: int, resize: int) -> NDArray[np.uint8]:
    """The middle square of `size` pixels, of a picture whose shorter side is made `resize` pixels long (0: `size`)."""
    whole = resize or size
    square = ImageOps.fit(image, (whole, whole), method=Image.Resampling.BICUBIC)
    edge = (whole - size) // 2
    return np.asarray(square, np.uint8)[edge : edge + size, edge : edge + size]


@contextmanager
def _opened(name: str, source: Path | BinaryIO, advice: str = "") -> Iterator[Image.Image]:
    """The picture, of which only the header is read. Whatever fails on it is a DataError that names the file."""
    try:
        with (
            open(source, "rb", opener=regular) if isinstance(source, Path) else source as opened,
            Image.open(opened, formats=list(FORMATS)) as file,
        ):
            # Grey of 16 bits is of mode I where Pillow reads it from PNG (before version 11) and PPM.
            if file.mode == "F" or (file.mode == "I" and file.format not in ("PNG", "PPM")):
                kind = "floating-point numbers" if file.mode == "F" else "integers of 32 bits"
                raise DataError(
                    f"{name}: its pixels are {kind}, of which white is not known; save it with 8 or 16 bits{advice}"
                )
            yield file
    except DataError:
        raise
    except Exception as error:  # the decoders raise all kinds of exceptions for damaged files
        # The text has the address of what was opened, which is another one each time.
        text = f"none of {', '.join(FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"{name}: not a readable image ({text}){advice}") from error


def _shown(file: Image.Image, channels: int, background: str) -> Image.Image:
    """The picture as it is to be seen, of mode RGB, or L if there is one channel. It is decoded here."""
    ImageOps.exif_transpose(file, in_place=True)
    image, mode = _in_eight_bits(file, background), "L" if channels == 1 else "RGB"
    image.load()
    return image if image.mode == mode else image.convert(mode)


def _transparent(image: Image.Image) -> bool:
    return "transparency" in image.info or bool({"A", "a"} & set(image.getbands()))


def _in_eight_bits(image: Image.Image, background: str) -> Image.Image:
    """The picture with 8 bits a channel, on the background where it is transparent."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        clear = values == image.info.get("transparency", -1)
        eight = Image.fromarray(((values * 255 + WHITE_OF_16_BITS // 2) // WHITE_OF_16_BITS).astype(np.uint8))
        if clear.any():
            eight = eight.convert("RGB")
            eight.paste(background, mask=Image.fromarray(clear))
        return eight
    if _transparent(image):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image
