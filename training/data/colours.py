"""Changes of a picture's colours: jitter, grey, blur and solarise, as self-supervised recipes (SimCLR, MoCo v3) have them.

A picture is a Pillow image of mode L or RGB. `random` says what is drawn.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

__all__ = ["blur", "grey", "jitter", "shift_hue", "solarise"]

BLUR = (0.1, 2.0)
"""Smallest and largest radius of the blur, the standard deviation in pixels."""


def jitter(
    image: Image.Image,
    random: np.random.Generator,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Image.Image:
    """Brightness, contrast, saturation and hue changed in a random order.

    The first three by a factor uniform in `[max(0, 1 - x), 1 + x]`, the hue by a part of the circle uniform in
    `[-hue, hue]`. Source: pytorch/vision, torchvision/transforms/transforms.py, ColorJitter.
    """
    strengths = (brightness, contrast, saturation)
    factors = [float(random.uniform(max(0.0, 1 - strength), 1 + strength)) for strength in strengths]
    turn = float(random.uniform(-hue, hue))
    for change in random.permutation(4):
        if change == 3:
            image = shift_hue(image, turn)
        else:
            enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[change]
            image = enhance(image).enhance(factors[change])
    return image


def shift_hue(image: Image.Image, turn: float) -> Image.Image:
    """The hue moved by `turn` of the circle, in steps of 1/255; a grey picture has none.

    Source: pytorch/vision, torchvision/transforms/_functional_pil.py, adjust_hue.
    """
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    moved = (np.asarray(hue).astype(np.int64) + int(turn * 255)) % 256
    return Image.merge("HSV", (Image.fromarray(moved.astype(np.uint8)), saturation, value)).convert("RGB")


def grey(image: Image.Image) -> Image.Image:
    """The picture without colours, in the mode that it has."""
    return image.convert("L").convert(image.mode)


def blur(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Gaussian blur with a radius uniform in `BLUR`. Source: facebookresearch/moco-v3, moco/loader.py, GaussianBlur."""
    return image.filter(ImageFilter.GaussianBlur(float(random.uniform(*BLUR))))


def solarise(image: Image.Image) -> Image.Image:
    """Values of 128 and above inverted: 255 - x. Source: facebookresearch/moco-v3, moco/loader.py, Solarize."""
    return ImageOps.solarize(image)
