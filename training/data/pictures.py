"""Picture files as they look, in eight bits: what a viewer shows on a white page, the right way up.

| in the file | what is made of it |
|---|---|
| 16 bits of grey | scaled to 8: 65535 is white; of a TIFF of 12 bits 4095, of one whose white is 0 (WhiteIsZero) inverted |
| a palette, transparency | its colours, on white, or another background |
| an orientation (EXIF, XMP) | turned and mirrored as it says; not if it cannot be read |
| a colour profile, texts | nothing, nor if they are damaged |
| CMYK, YCbCr, HSV | RGB |
| several frames | the first |
| floating-point numbers, integers with a sign or of 32 bits | an error: which number is white is not known |
| a TIFF of 10 or 14 bits | an error: Pillow does not read it |
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
"""Formats that Pillow may recognise, whatever the name says: some of its others start programs."""
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
Seen = TypeVar("Seen")
MOST = 2**28
"""Bytes of a file that are searched for damage."""
BITS, PHOTOMETRIC = 258, 262
"""Tags of TIFF."""
# They do not name the file. Twice as many pixels as the second one allows are an error.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, module=r"PIL\.")


class Files(Protocol):
    """Image files by number. It is pickled for worker processes.

    name: what errors call a file. open: what Pillow opens. known: name and size of a file, the same on another machine; empty if
    it would have to be read.
    """

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def open(self, index: int) -> Path | BinaryIO: ...
    def known(self, index: int) -> str: ...


@dataclass(frozen=True)
class Folder:
    """Files below a folder, by names relative to it."""

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
    """Some of the pictures of `files`, `chosen` by number, as images `(size, size, channels)`.

    resize: length of the shorter side in pixels before the middle square of `size` is cut out; 0 for `size`.
    background: colour behind transparency. advice: end of the error of a damaged file.
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
        """The file of a picture."""
        return self.files.name(int(self.chosen[index]))

    def picture(self, index: int) -> Image.Image:
        """A whole picture, of mode RGB, or L if there is one channel. Raises DataError naming a file that is damaged."""
        return self._look(index, lambda file: _shown(file, self.channels, self.background))

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The middle squares of pictures. Raises DataError naming a file that is damaged."""

        def square(file: Image.Image) -> NDArray[np.uint8]:
            return middle(_shown(file, self.channels, self.background), self.size, self.resize)

        images = np.empty((len(indices), self.size, self.size, self.channels), np.uint8)
        for image, index in zip(images, indices, strict=True):
            image[...] = self._look(int(index), square).reshape(image.shape)
        return images

    def head(self, index: int, length: int) -> bytes:
        """The first bytes of a file, as they are."""
        source = self.files.open(int(self.chosen[index]))
        with open(source, "rb", opener=regular) if isinstance(source, Path) else source as file:
            return file.read(length)

    def transparent(self, index: int) -> bool:
        """Whether there may be transparency, by the header. Raises DataError naming a file that is not a picture by that."""
        return self._look(index, _transparent)

    def _look(self, index: int, look: Callable[[Image.Image], Seen]) -> Seen:
        number = int(self.chosen[index])
        return _look(self.files.name(number), self.files.open(number), look, self.advice)


def read_image(
    path: Path, size: int, *, channels: int = 3, resize: int = 0, background: str = "white"
) -> NDArray[np.uint8]:
    """The middle square of a picture, resized to `(size, size, channels)` uint8, grey or RGB. Raises DataError naming the file."""
    if channels not in (1, 3):
        raise DataError(f"{path}: images are grey or RGB, but the model takes {channels} channels")
    files = Folder(path.parent, (path.name,))
    images = Pictures(files, np.zeros(1, np.int64), size, resize, background, channels).read(np.zeros(1, np.int64))
    return images.reshape(size, size, channels)


def middle(image: Image.Image, size: int, resize: int) -> NDArray[np.uint8]:
    """The middle square of `size` pixels, of a picture whose shorter side is made `resize` pixels long (0: `size`)."""
    whole = resize or size
    square = ImageOps.fit(image, (whole, whole), method=Image.Resampling.BICUBIC)
    edge = (whole - size) // 2
    return np.asarray(square, np.uint8)[edge : edge + size, edge : edge + size]


def _look(name: str, source: Path | BinaryIO, look: Callable[[Image.Image], Seen], advice: str = "") -> Seen:
    """The result of `look` for a picture whose header is read. Raises DataError, naming the file, for any failure."""
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
    except Exception as error:  # the decoders raise all kinds of exceptions for damaged files
        unknown = isinstance(error, UnidentifiedImageError)  # its text has an address, another one each time
        text = f"none of {', '.join(FORMATS)} that Pillow reads; grey TIFF needs 8, 12 or 16 bits" if unknown else error
        raise DataError(f"{name}: not a readable image ({text}){advice}") from error


def _opened(file: BinaryIO, look: Callable[[Image.Image], Seen]) -> Seen:
    with Image.open(file, formats=list(FORMATS)) as image:
        # Grey of 16 bits is of mode I where Pillow reads it from PNG (before version 11) and PPM.
        if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
            kind = "floating-point numbers" if image.mode == "F" else "signed or 32-bit integers"
            raise DataError(f"its pixels are {kind}, whose value range is unknown; save it with 8 or 16 bits")
        return look(image)


def _bare(content: bytes) -> bytes | None:
    """A PNG file without colour profile, texts and the like, in which damage does not matter; None for other files."""
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
    """The picture as it is to be seen, of mode RGB, or L if there is one channel. It is decoded here."""
    file.load()
    with suppress(Exception):  # of a damaged block of EXIF; then nothing is turned
        ImageOps.exif_transpose(file, in_place=True)
    image, mode = _in_eight_bits(file, background), "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _transparent(image: Image.Image) -> bool:
    return "transparency" in image.info or bool({"A", "a"} & set(image.getbands()))


def _in_eight_bits(image: Image.Image, background: str) -> Image.Image:
    """The picture with 8 bits a channel, on the background where it is transparent."""
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
