"""RandAugment (Cubuk et al. 2019, arXiv 1909.13719) with the operations and magnitudes of the ViT and V-MoE recipes.

`randaug(2, 15)` in those recipes means two of the 16 operations below, drawn with repetition, each at magnitude 15, where 10 is full
strength. The table gives the strength of each operation at magnitude M.

| operation | at magnitude M |
|---|---|
| AutoContrast, Equalize, Invert | - |
| Rotate | 30 degrees M/10, in either direction |
| Posterize | `int(4 M/10)` bits are kept, at least 1 (TensorFlow shifts by at most 7) and at most 8 |
| Solarize | values of `int(256 M/10)` and above are inverted |
| SolarizeAdd | values below 128 are raised by `int(110 M/10)` |
| Color, Contrast, Brightness, Sharpness | factor `0.1 + 1.8 M/10` |
| ShearX, ShearY | 0.3 M/10, in either direction |
| TranslateX, TranslateY | 100 pixels M/10, in either direction |
| Cutout | a grey square of `2 int(40 M/10)` pixels, cut off at the edges |

Areas outside the moved picture are grey (128). For images smaller than 224 pixels, translations and cutouts are proportionally smaller.

Source: google-research/big_vision, pp/autoaugment.py, distort_image_with_randaugment. The code of big_vision imitates Pillow's
operations, and this module calls Pillow. Contrast differs: big_vision blends the picture with a grey value of (number of pixels / 256),
which is 196 at 224 x 224 pixels. This module blends the picture with its mean, as Pillow does and big_vision's comment says. From magnitude
10 on, Solarize inverts nothing, since its threshold is above white. TensorFlow's behaviour for a threshold above 255 was not examined.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

__all__ = ["OPERATIONS", "randaugment"]

GREY = 128
FULL = 224
"""Images whose longer side has at least this many pixels get translations and cutouts of the same size as in the recipes."""

Operation = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def randaugment(image: Image.Image, random: np.random.Generator, *, operations: int, magnitude: float) -> Image.Image:
    """Applies random operations, drawn with repetition, at a magnitude (10 is full strength) to a picture of mode L or RGB."""
    names = list(OPERATIONS)
    for _ in range(operations):
        image = OPERATIONS[names[random.integers(len(names))]](image, magnitude / 10, random)
    return image


def _fill(image: Image.Image) -> int | tuple[int, int, int]:
    return GREY if image.mode == "L" else (GREY, GREY, GREY)


def _either(value: float, random: np.random.Generator) -> float:
    return value if random.random() < 0.5 else -value


def _pixels(image: Image.Image, value: float) -> float:
    return value * min(1.0, max(image.size) / FULL)


def _moved(image: Image.Image, level: float, random: np.random.Generator) -> float:
    return _either(_pixels(image, 100 * level), random)


def _affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Fills each pixel `(x, y)` with the pixel nearest to `(a x + b y + c, d x + e y + f)`."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_fill(image))


def _shear_x(image: Image.Image, slope: float) -> Image.Image:
    return _affine(image, (1, slope, -slope / 2, 0, 1, 0))  # Pillow's origin is the corner of the first pixel


def _shear_y(image: Image.Image, slope: float) -> Image.Image:
    return _affine(image, (1, 0, 0, slope, 1, -slope / 2))


def _posterize(image: Image.Image, level: float, random: np.random.Generator) -> Image.Image:
    bits = min(max(int(4 * level), 1), 8)
    return image.point(lambda value: value >> (8 - bits) << (8 - bits))


def _solarize_add(image: Image.Image, level: float, random: np.random.Generator) -> Image.Image:
    added = int(110 * level)
    return image.point([min(value + added, 255) if value < 128 else value for value in range(256)] * len(image.mode))


def _cutout(image: Image.Image, level: float, random: np.random.Generator) -> Image.Image:
    width, height = image.size
    half = int(_pixels(image, int(40 * level)))
    x, y = int(random.integers(width)), int(random.integers(height))
    image = image.copy()
    image.paste(_fill(image), (max(x - half, 0), max(y - half, 0), min(x + half, width), min(y + half, height)))
    return image


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, level, random: kind(image).enhance(0.1 + 1.8 * level)


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda image, level, random: ImageOps.autocontrast(image),
    "Equalize": lambda image, level, random: ImageOps.equalize(image),
    "Invert": lambda image, level, random: ImageOps.invert(image),
    "Rotate": lambda image, level, random: image.rotate(_either(30 * level, random), fillcolor=_fill(image)),
    "Posterize": _posterize,
    "Solarize": lambda image, level, random: ImageOps.solarize(image, int(256 * level)),
    "Color": _enhanced(ImageEnhance.Color),
    "Contrast": _enhanced(ImageEnhance.Contrast),
    "Brightness": _enhanced(ImageEnhance.Brightness),
    "Sharpness": _enhanced(ImageEnhance.Sharpness),
    "ShearX": lambda image, level, random: _shear_x(image, _either(0.3 * level, random)),
    "ShearY": lambda image, level, random: _shear_y(image, _either(0.3 * level, random)),
    "TranslateX": lambda image, level, random: _affine(image, (1, 0, _moved(image, level, random), 0, 1, 0)),
    "TranslateY": lambda image, level, random: _affine(image, (1, 0, 0, 0, 1, _moved(image, level, random))),
    "Cutout": _cutout,
    "SolarizeAdd": _solarize_add,
}
"""The operations, each a function of a picture, a magnitude (1: full strength) and a random generator."""
