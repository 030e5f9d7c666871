"""The section `data` of a run's configuration."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from moespec.models.checks import Natural, Share, check_fields
from moespec.models.options import Only, option
from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName, is_own
from moespec.spec.ranges import Range, Scalar

__all__ = ["TARGETS", "DataConfig", "numbers"]


FILES = Only("name", unless="digits")
DECODED = Only("name", unless="digits", why="the digits are not image files")
JITTER = Only("jitter")
TARGETS = Only("objective", unless=("moco", "lit"), why="the objective has no targets")


@dataclass(frozen=True)
class DataConfig:
    """The images and their augmentation. The random numbers for an image depend on the seed, the step and the position in the batch."""

    name: (
        Literal["digits", "npz", "idx", "cifar10", "cifar100", "folder", "webdataset", "huggingface", "pairs"] | OwnName
    ) = "digits"
    """data set (moespec list datasets), or your own as package.module:function (docs/own-objects.md)"""
    path: str = option("", only=FILES)
    """file or folder of the data set; digits needs none"""
    validation_share: float = 0.2
    """fraction of each class held out for validation if the data set has no validation split"""
    classes: str = ""
    """text file of class names, one per line in the order of the labels"""
    resize: Annotated[int, Range(0, 2**16, below=False)] = option(0, only=FILES)
    """image files: length of the shorter side, in pixels, before the centre crop; 0 for the model's image size"""
    background: str = option("white", only=FILES)
    """image files: colour behind transparent pixels, as a name or #rrggbb"""
    broken: Literal["error", "skip"] = option("error", only=FILES)
    """handling of unreadable images; error: stop at the first; skip: check all images first, count the unreadable ones and skip them"""
    mean: str = "0.5"
    """mean subtracted from the channels (white is 1): one number, or one per channel, such as 0.485,0.456,0.406"""
    std: str = "0.5"
    """standard deviation that divides the channels: one number, or one per channel"""
    crop: Literal["middle", "inception", "torchvision"] = "middle"
    """crop of training images: the centre square, or a random crop as in big_vision or torchvision's RandomResizedCrop"""
    crop_area: Annotated[float, Range(0, 1, above=True, below=False)] = option(0.05, only=Only("crop", unless="middle"))
    """random crops: smallest fraction of the image's area (big_vision 0.05, torchvision 0.08)"""
    crop_padding: Natural = 0
    """shift images at random by up to this many pixels; 0 for none"""
    flip: bool = False
    """mirror half of the images"""
    jitter: Share = 0.0
    """probability of changing brightness, contrast, saturation and hue"""
    brightness: Scalar = option(0.4, only=JITTER)
    """jitter: largest relative change of the brightness"""
    contrast: Scalar = option(0.4, only=JITTER)
    """jitter: largest relative change of the contrast"""
    saturation: Scalar = option(0.2, only=JITTER)
    """jitter: largest relative change of the saturation"""
    hue: Annotated[float, Range(0, 0.5, below=False)] = option(0.1, only=JITTER)
    """jitter: largest change of the hue, in turns of the colour circle, at most 0.5"""
    grey: Share = option(0.0, rare=True)
    """probability of converting an image to greyscale"""
    blur: Share = option(0.0, rare=True)
    """probability of a Gaussian blur of 0.1 to 2 pixels"""
    solarise: Share = option(0.0, rare=True)
    """probability of inverting pixel values of 128 and above"""
    randaugment: Annotated[int, Range(0, 100, below=False)] = 0
    """RandAugment operations per image; 0 for none"""
    magnitude: Annotated[float, Range(0, 100, below=False)] = option(10.0, only=Only("randaugment"))
    """RandAugment: magnitude of the operations; the ViT and V-MoE recipes use 10 to 20"""
    transform: str = ""
    """your own package.module:function, called with an image (uint8, H x W x channels) and a random generator"""
    erase: Share = option(0.0, rare=True)
    """probability of filling a rectangle of an image with noise (random erasing)"""
    mixup: Scalar = option(0.0, only=TARGETS)
    """mix pairs of images with a weight from Beta(mixup, mixup); 0 for none"""
    cutmix: Scalar = option(0.0, only=TARGETS)
    """paste a rectangle of one image into another, with an area drawn from Beta(cutmix, cutmix); 0 for none; alternates with mixup"""
    balance: Share = option(0.0, only=TARGETS)
    """sample each image with weight n^-balance, for n images in its class; 0: once per epoch; 1: all classes equally often"""
    label_smoothing: Annotated[float, Range(0, 1)] = option(0.0, only=TARGETS)
    """fraction of each label spread evenly over all classes"""
    workers: Annotated[int, Range(0, 1024, below=False)] = option(0, only=DECODED)
    """processes that prepare batches; 0: prepare batches in a thread of the training process"""
    prefetch: Annotated[int, Range(1, 2**20, below=False)] = option(2, rare=True)
    """batches prepared in advance by each worker"""

    def __post_init__(self) -> None:
        check_fields("data", self)
        numbers("data.mean", self.mean)
        if min(numbers("data.std", self.std)) <= 0:
            raise ConfigError(f"data.std={self.std!r}: expected numbers above 0")
        if self.transform and not is_own(self.transform):
            raise ConfigError(f"data.transform={self.transform!r}: expected package.module:function")
        from PIL import ImageColor  # imported here, since `moespec ledger` must work without the extra

        try:
            ImageColor.getrgb(self.background)
        except ValueError:
            raise ConfigError(f"data.background={self.background!r}: expected a colour name or #rrggbb") from None


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Returns the comma-separated numbers in a text. For any other text, raises ConfigError. name: the text's name in the error."""
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(value) for value in values):
        raise ConfigError(f"{name}={text!r}: expected a number, or one per channel, comma-separated")
    return values
