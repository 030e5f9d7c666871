"""Picture files as they look, in eight bits: what a viewer shows on a white page, the right way up.

| in the file | what is made of it |
|---|---|
| 16 bits of grey | scaled to 8: 65535 is white |
| a palette, transparency | its colours, on white |
| an orientation (EXIF) | turned and mirrored as it says |
| CMYK, YCbCr, HSV | RGB |
| several frames | the first |
| floating-point numbers, integers of 32 bits | an error: which number is white is not known |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from moespec.models.errors import DataError

__all__ = ["check_header", "read_image"]

WHITE_OF_16_BITS = 65535


def check_header(path: Path) -> None:
    """DataError naming a file that is not a picture, or has pixels of a kind that `read_image` does not read.

    Only the header is read, so a picture that is damaged further down passes.
    """
    with _opened(path):
        pass


def read_image(path: Path, size: int, *, channels: int = 3) -> NDArray[np.uint8]:
    """The middle square of a picture, resized to `(size, size, channels)` uint8; one channel is grey, three are RGB.

    Raises DataError naming a file that is not there or cannot be decoded.
    """
    if channels not in (1, 3):
        raise DataError(f"{path}: a picture is grey or RGB, but the model takes {channels} channels")
    with _opened(path) as file:
        image = _in_eight_bits(ImageOps.exif_transpose(file)).convert("L" if channels == 1 else "RGB")
        square = ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
        return np.asarray(square, np.uint8).reshape(size, size, channels)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The picture, of which only the header is read. Whatever fails on it is a DataError that names the file."""
    try:
        with Image.open(path) as file:
            # Grey of 16 bits is of mode I where Pillow reads it from PNG (before version 11) and PPM.
            if file.mode == "F" or (file.mode == "I" and file.format not in ("PNG", "PPM")):
                kind = "floating-point numbers" if file.mode == "F" else "integers of 32 bits"
                raise DataError(
                    f"{path}: its pixels are {kind}, of which white is not known; save it with 8 or 16 bits"
                )
            yield file
    except DataError:
        raise
    except Exception as error:  # the decoders raise all kinds of exceptions for damaged files
        raise DataError(f"{path}: not a readable image ({error})") from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """The picture with 8 bits a channel, on white where it is transparent."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        values[values == image.info.get("transparency", -1)] = WHITE_OF_16_BITS
        return Image.fromarray(((values * 255 + WHITE_OF_16_BITS // 2) // WHITE_OF_16_BITS).astype(np.uint8))
    if "transparency" in image.info or {"A", "a"} & set(image.getbands()):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image
