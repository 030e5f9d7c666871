"""Transforms single training images: crop, colours, RandAugment, the user's function, erasing.

Random numbers depend on the seed, the operation, and the position of the image among all images that training sees (step times
batch, plus its position in the batch). Enabling one operation does not change the random numbers of other operations.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from moespec.models.checks import called
from moespec.spec.errors import ConfigError
from moespec.spec.own import own_function
from moespec.training.data.dataset import Dataset, as_picture
from moespec.training.data.options import DataConfig
from moespec.training.data.randaugment import randaugment
from moespec.training.rng import PICTURE, generator

__all__ = [
    *("blur", "check_changes", "cut_out", "erase", "grey", "inception_box", "jitter", "shift_hue", "solarise"),
    *("torchvision_box", "try_transform", "user_transform", "with_changes"),
]

CROP, JITTER, GREY, BLUR, SOLARISE, RANDAUGMENT, TRANSFORM, ERASE = range(8)
"""The number that selects the random numbers of each operation within the stream PICTURE."""
COLOURS = ("jitter", "grey", "blur", "solarise", "randaugment")
"""Fields of `DataConfig` whose operations need 8-bit grey or RGB images."""
SMALLEST, LARGEST, FLATTEST = 0.02, 0.4, 0.3
"""Random erasing: smallest and largest area fraction, and smallest aspect ratio; the largest aspect ratio is 1 / `FLATTEST`."""
ATTEMPTS = 1000
RATIO_LIMIT = 1e-7
BLUR_RADIUS = (0.1, 2.0)
"""Smallest and largest standard deviation of the blur, in pixels."""

Transform = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]
Numbers = NDArray[np.int64]
Box = tuple[int, int, int, int]
"""A crop `(left, top, width, height)` in whole pixels, before it is resized to the size of the model's images."""


def cut_out(
    dataset: Dataset, config: DataConfig, indices: NDArray[np.int64], *, seed: int, positions: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Returns the training images `indices`, cropped as `config.crop` requires. positions: the images' positions in the run."""
    if config.crop == "middle":
        return dataset.train.read(indices)
    height, width, channels = dataset.shape
    find = inception_box if config.crop == "inception" else torchvision_box
    images = np.empty((len(indices), height, width, channels), np.uint8)
    for place, index in enumerate(indices):
        picture = dataset.train.picture(int(index))
        random = generator(seed, PICTURE, int(positions[place]), CROP)
        left, top, wide, tall = find(*picture.size, random, area=config.crop_area)
        part = picture.crop((left, top, left + wide, top + tall))
        images[place] = np.asarray(part.resize((width, height), Image.Resampling.BILINEAR)).reshape(images[place].shape)
    return images


def with_changes(
    images: NDArray[np.uint8], config: DataConfig, *, maximum: int, seed: int, positions: Numbers, indices: Numbers
) -> NDArray[np.uint8]:
    """Applies colour changes, RandAugment, the user's transform and random erasing to images `(N, H, W, Ch)`.

    positions: the positions of the images in the run, which select the random numbers. indices: the numbers of the images, for errors.
    Raises ConfigError if the user's transform raises, or does not return an image of the same shape and dtype.
    """
    coloured = any(getattr(config, name) for name in COLOURS)
    own = user_transform(config.transform)
    if not (coloured or own or config.erase):
        return images
    images = images.copy()
    for place, position in enumerate(positions.tolist()):
        image = images[place]
        if coloured:
            picture = _coloured(as_picture(image), config, seed=seed, position=position)
            image = np.asarray(picture).reshape(image.shape)
        if own:
            random = generator(seed, PICTURE, position, TRANSFORM)
            image = _transformed(own, image, random, f"data.transform={config.transform!r}, image {indices[place]}")
        images[place] = image
        random = generator(seed, PICTURE, position, ERASE)
        if random.random() < config.erase:
            erase(images[place], random, maximum=maximum)
    return images


def _coloured(picture: Image.Image, config: DataConfig, *, seed: int, position: int) -> Image.Image:
    def happens(part: int, probability: float) -> np.random.Generator | None:
        random = generator(seed, PICTURE, position, part)
        return random if random.random() < probability else None

    if config.jitter and (random := happens(JITTER, config.jitter)):
        strengths = {name: getattr(config, name) for name in ("brightness", "contrast", "saturation", "hue")}
        picture = jitter(picture, random, **strengths)
    if config.grey and happens(GREY, config.grey):
        picture = grey(picture)
    if config.blur and (random := happens(BLUR, config.blur)):
        picture = blur(picture, random)
    if config.solarise and happens(SOLARISE, config.solarise):
        picture = solarise(picture)
    if config.randaugment:
        random = generator(seed, PICTURE, position, RANDAUGMENT)
        picture = randaugment(picture, random, operations=config.randaugment, magnitude=config.magnitude)
    return picture


def erase(image: NDArray[np.uint8], random: np.random.Generator, *, maximum: int) -> None:
    """Fills a rectangle of an image `(H, W, Ch)`, in place, with values uniform in 0..maximum.

    The area fraction is uniform in [0.02, 0.4], the ratio of height to width in [0.3, 1/0.3]; both are redrawn until the rectangle fits.
    Source: Zhong et al. 2017 (arXiv 1708.04896), Algorithm 1 with the values of section 4.2.
    """
    height, width, channels = image.shape
    for _ in range(ATTEMPTS):
        area = random.uniform(SMALLEST, LARGEST) * height * width
        ratio = random.uniform(FLATTEST, 1 / FLATTEST)
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        left, top = int(random.integers(width)), int(random.integers(height))
        if left + wide <= width and top + tall <= height:
            noise = random.integers(0, maximum + 1, (tall, wide, channels), np.uint8)
            image[top : top + tall, left : left + wide] = noise
            return


def try_transform(dataset: Dataset, config: DataConfig) -> None:
    """Raises ConfigError if the user's transform raises on the first training image or returns no valid image."""
    if own := user_transform(config.transform):
        image, random = dataset.train.read(np.arange(1))[0], generator(0, PICTURE, 0, TRANSFORM)
        _transformed(own, image, random, f"data.transform={config.transform!r}, image 0")


def _transformed(own: Transform, image: NDArray[np.uint8], random: np.random.Generator, what: str) -> NDArray[np.uint8]:
    changed = called(what, own, image, random)
    if not (isinstance(changed, np.ndarray) and changed.shape == image.shape and changed.dtype == np.uint8):
        returned = f"{changed.dtype} {changed.shape}" if isinstance(changed, np.ndarray) else type(changed).__name__
        raise ConfigError(f"{what}: returned {returned}, expected uint8 {image.shape}")
    return changed


def user_transform(name: str) -> Transform | None:
    """Returns the function `package.module:function`, or None for an empty name. Raises ConfigError if the function cannot be imported."""
    return own_function("data.transform", name, load=True) if name else None


def check_changes(dataset: Dataset, config: DataConfig) -> None:
    """Raises ConfigError, naming the field, for a transform that these images do not support."""
    channels = dataset.shape[2]
    wanted = [name for name in COLOURS if getattr(config, name)]
    if config.crop != "middle" and channels not in (1, 3):
        raise ConfigError(f"data.crop={config.crop!r}: expected images with 1 or 3 channels, got {channels}")
    if wanted and (channels not in (1, 3) or dataset.maximum != 255):
        what = f"got {channels} channels and white at {dataset.maximum}"
        name = wanted[0]
        raise ConfigError(f"data.{name}={getattr(config, name)!r}: expected 1 or 3 channels and white at 255, {what}")


def inception_box(width: int, height: int, random: np.random.Generator, *, area: float) -> Box:
    """Draws the Inception crop, which covers a fraction of the picture from `area` to 1 and is 0.75 to 1.33 times as wide as high.

    The aspect ratio is uniform. For the drawn ratio, the height in pixels is uniform between the heights that give the smallest and the
    largest fraction. After 100 ratios without a fitting crop, the whole picture is used. As in the source code, a crop does not start at
    the last position of an axis, unless there is only one position.

    Source: tensorflow/tensorflow, core/kernels/image/sample_distorted_bounding_box_op.cc, GenerateRandomCrop, with the
    arguments of google-research/big_vision, pp/ops_image.py, decode_jpeg_and_inception_crop.
    """
    for _ in range(100):
        ratio = float(random.uniform(0.75, 1.33))
        smallest, largest = area * width * height, float(width * height)
        low, high = round(math.sqrt(smallest / ratio)), round(math.sqrt(largest / ratio))
        if round(high * ratio) > width:
            high = int((width + 0.5 - RATIO_LIMIT) / ratio)
            high -= round(high * ratio) > width
        high = min(high, height)
        tall = int(random.integers(min(low, high), high + 1))
        wide = round(tall * ratio)
        if wide * tall < smallest:
            tall += 1
            wide = round(tall * ratio)
        if wide * tall > largest:
            tall -= 1
            wide = round(tall * ratio)
        if smallest <= wide * tall <= largest and 0 < wide <= width and 0 < tall <= height:
            top = int(random.integers(max(height - tall, 1)))
            left = int(random.integers(max(width - wide, 1)))
            return left, top, wide, tall
    return 0, 0, width, height


def torchvision_box(width: int, height: int, random: np.random.Generator, *, area: float) -> Box:
    """Draws the crop of `RandomResizedCrop`: the area fraction is uniform from `area` to 1, the aspect ratio log-uniform from 3/4 to 4/3.

    After 10 crops that do not fit, returns the largest central crop with an aspect ratio from 3/4 to 4/3.

    Source: pytorch/vision, torchvision/transforms/transforms.py, RandomResizedCrop.get_params.
    """
    narrowest, widest = 3 / 4, 4 / 3
    for _ in range(10):
        share = width * height * random.uniform(area, 1)
        ratio = math.exp(random.uniform(math.log(narrowest), math.log(widest)))
        wide, tall = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(random.integers(height - tall + 1))
            left = int(random.integers(width - wide + 1))
            return left, top, wide, tall
    wide, tall = width, height
    if width < narrowest * height:
        tall = round(width / narrowest)
    elif width > widest * height:
        wide = round(height * widest)
    return (width - wide) // 2, (height - tall) // 2, wide, tall


def jitter(
    image: Image.Image,
    random: np.random.Generator,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Image.Image:
    """Changes brightness, contrast, saturation and hue in random order.

    Brightness, contrast and saturation are each scaled by a uniform factor in `[max(0, 1 - x), 1 + x]`, where x is the argument. The hue is
    rotated by a uniform fraction of the circle in `[-hue, hue]`. Source: pytorch/vision, torchvision/transforms/transforms.py, ColorJitter.
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
    """Rotates the hue by the fraction `turn` of the circle, in steps of 1/255. Grey pictures do not change.

    Source: pytorch/vision, torchvision/transforms/_functional_pil.py, adjust_hue.
    """
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    moved = (np.asarray(hue).astype(np.int64) + int(turn * 255)) % 256
    return Image.merge("HSV", (Image.fromarray(moved.astype(np.uint8)), saturation, value)).convert("RGB")


def grey(image: Image.Image) -> Image.Image:
    """Returns the picture without colours, in its original mode."""
    return image.convert("L").convert(image.mode)


def blur(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Applies a Gaussian blur with a radius uniform in `BLUR_RADIUS`. Source: facebookresearch/moco-v3, moco/loader.py, GaussianBlur."""
    return image.filter(ImageFilter.GaussianBlur(float(random.uniform(*BLUR_RADIUS))))


def solarise(image: Image.Image) -> Image.Image:
    """Inverts values of 128 and above: 255 - x. Source: facebookresearch/moco-v3, moco/loader.py, Solarize."""
    return ImageOps.solarize(image)
