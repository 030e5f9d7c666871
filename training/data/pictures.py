"""Reads picture files with 8 bits per channel, as an image viewer shows them: upright and on a white background.

| in the file | result |
|---|---|
| 16-bit grey | scaled to 8 bits: 65535 is white; in a 12-bit TIFF 4095 is white; a TIFF with white at 0 (WhiteIsZero) is inverted |
| a palette, transparency | its colours, on white, or another background |
| an orientation (EXIF, XMP) | rotated and mirrored accordingly; ignored if unreadable |
| a colour profile, texts | ignored, even if damaged |
| CMYK, YCbCr, HSV | RGB |
| several frames | the first |
| floating-point numbers, signed or 32-bit integers | an error: the value of white is unknown |
| a TIFF of 10 or 14 bits | an error: Pillow cannot read it |
"""

import io
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from moespec.models.errors import DataError
from moespec.models.files import regular

__all__ = ["ENDINGS", "Files", "Folder", "Pictures", "read_image"]

FORMATS = {
    **{"BMP": (".bmp",), "GIF": (".gif",), "JPEG": (".jfif", ".jpeg", ".jpg"), "PNG": (".png",), "PPM": (".ppm",)},
    **{"TIFF": (".tif", ".tiff"), "WEBP": (".webp",)},
}
"""The only formats that Pillow may open, whatever the file name: for some other formats, Pillow starts external programs."""
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
Seen = TypeVar("Seen")
MOST = 2**28
"""Maximum number of bytes that are read from a damaged file to remove the damaged parts."""
BITS, PHOTOMETRIC = 258, 262
"""TIFF tags."""
# Pillow's warnings do not name the file, so they are ignored. Pillow itself rejects images that are much too large.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, module=r"PIL\.")


class Files(Protocol):
    """A numbered sequence of image files. Worker processes get pickled copies of this object.

    name: the file's name in errors. open: the path or stream that Pillow opens. known: the name and size of a file, equal on all
    machines; empty if the size is unknown without reading the file.
    """

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def open(self, index: int) -> Path | BinaryIO: ...
    def known(self, index: int) -> str: ...


@dataclass(frozen=True)
class Folder:
    """Files below the folder `root`, with names relative to this folder."""

    root: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return str(self.root / self.names[index])

    def open(self, index: int) -> Path:
        return self.root / self.names[index]

    def known(self, index: int) -> str:
        return f"{self.names[index]} {os.stat(os.path.join(self.root, self.names[index])).st_size}"


@dataclass(frozen=True)
class Pictures:
    """The pictures of `files` with the numbers `chosen`, as images `(size, size, channels)`.

    resize: length of the shorter side, in pixels, before the middle square of `size` is cropped; 0 means `size`.
    background: colour behind transparency. advice: end of the error message for a damaged file.
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

    def name(self, index: int) -> str:
        """Returns the file name of a picture."""
        return self.files.name(int(self.chosen[index]))

    def picture(self, index: int) -> Image.Image:
        """Returns an uncropped picture, of mode RGB, or L if there is one channel. For a damaged file, raises DataError naming the file."""
        return self._look(index, lambda file: _shown(file, self.channels, self.background))

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the middle squares of pictures. For a damaged file, raises DataError naming the file."""

        def square(file: Image.Image) -> NDArray[np.uint8]:
            return middle(_shown(file, self.channels, self.background), self.size, self.resize)

        images = np.empty((len(indices), self.size, self.size, self.channels), np.uint8)
        for image, index in zip(images, indices, strict=True):
            image[...] = self._look(int(index), square).reshape(image.shape)
        return images

    def head(self, index: int, length: int) -> bytes:
        """Returns the first bytes of a file."""
        source = self.files.open(int(self.chosen[index]))
        with open(source, "rb", opener=regular) if isinstance(source, Path) else source as file:
            return file.read(length)

    def transparent(self, index: int) -> bool:
        """Returns whether the header allows transparency. Raises DataError, naming the file, if the file has no picture header."""
        return self._look(index, _transparent)

    def _look(self, index: int, look: Callable[[Image.Image], Seen]) -> Seen:
        number = int(self.chosen[index])
        return _look(self.files.name(number), self.files.open(number), look, self.advice)


def read_image(
    path: Path, size: int, *, channels: int = 3, resize: int = 0, background: str = "white"
) -> NDArray[np.uint8]:
    """Returns the middle square of a picture, resized to `(size, size, channels)` uint8, grey or RGB. Raises DataError naming the file."""
    if channels not in (1, 3):
        raise DataError(f"{path}: images are grey or RGB, but the model takes {channels} channels")
    files = Folder(path.parent, (path.name,))
    images = Pictures(files, np.zeros(1, np.int64), size, resize, background, channels).read(np.zeros(1, np.int64))
    return images.reshape(size, size, channels)


def middle(image: Image.Image, size: int, resize: int) -> NDArray[np.uint8]:
    """Scales the shorter side of a picture to `resize` pixels (0 means `size`) and returns the middle square of `size` pixels."""
    whole = resize or size
    square = ImageOps.fit(image, (whole, whole), method=Image.Resampling.BICUBIC)
    edge = (whole - size) // 2
    return np.asarray(square, np.uint8)[edge : edge + size, edge : edge + size]


def _look(name: str, source: Path | BinaryIO, look: Callable[[Image.Image], Seen], advice: str = "") -> Seen:
    """Opens a picture and returns `look(picture)`. Raises DataError, naming the file, for any failure."""
    try:
        with open(source, "rb", opener=regular) if isinstance(source, Path) else source as opened:
            try:
                return _opened(opened, look)
            except Exception:
                opened.seek(0)
                if (bare := _bare(opened.read(MOST))) is None:
                    raise
                return _opened(io.BytesIO(bare), look)
    except DataError as error:
        raise DataError(f"{name}: {error}{advice}") from error
    except Exception as error:  # decoders raise many exception types for damaged files
        unknown = isinstance(error, UnidentifiedImageError)  # this error's text contains a memory address
        text = f"expected {', '.join(FORMATS)}; grey TIFF needs 8, 12 or 16 bits" if unknown else error
        raise DataError(f"{name}: not a readable image ({text}){advice}") from error


def _opened(file: BinaryIO, look: Callable[[Image.Image], Seen]) -> Seen:
    with Image.open(file, formats=list(FORMATS)) as image:
        # Pillow opens 16-bit grey PPM files, and before version 11 also 16-bit grey PNG files, in mode I.
        if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
            kind = "floating-point numbers" if image.mode == "F" else "signed or 32-bit integers"
            raise DataError(f"its pixels are {kind}, whose value range is unknown; save it with 8 or 16 bits")
        return look(image)


def _bare(content: bytes) -> bytes | None:
    """Returns a PNG file without the chunks that do not change its pixels, such as texts; returns None for other files."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    kept, place = bytearray(content[:8]), 8
    while kind := content[place + 4 : place + 8]:
        end = place + 12 + int.from_bytes(content[place : place + 4])
        intact = zlib.crc32(content[place + 4 : end - 4]).to_bytes(4) == content[end - 4 : end]
        if kind[:1].isupper() or kind == b"tRNS" or (kind == b"eXIf" and intact):
            kept += content[place:end]
        place = end
    return bytes(kept)


def _shown(file: Image.Image, channels: int, background: str) -> Image.Image:
    """Decodes a picture as an image viewer shows it. The result has mode RGB, or mode L if there is one channel."""
    file.load()
    with suppress(Exception):  # if the EXIF block is damaged, the orientation is ignored
        ImageOps.exif_transpose(file, in_place=True)
    image, mode = _in_eight_bits(file, background), "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _transparent(image: Image.Image) -> bool:
    return "transparency" in image.info or bool({"A", "a"} & set(image.getbands()))


def _in_eight_bits(image: Image.Image, background: str) -> Image.Image:
    """Returns the picture with 8 bits per channel; the background shows through transparent pixels."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        clear = values == image.info.get("transparency", -1)
        tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
        white = 2 ** tags.get(BITS, (16,))[0] - 1
        values = white - values if tags.get(PHOTOMETRIC) == 0 else values
        eight = Image.fromarray(((values * 255 + white // 2) // white).astype(np.uint8))
        if clear.any():
            eight = eight.convert("RGB")
            eight.paste(background, mask=Image.fromarray(clear))
        return eight
    if _transparent(image):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image
