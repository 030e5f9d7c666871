"""The section `data` of a run's configuration."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from moespec.models.checks import at_least

__all__ = ["DataConfig"]


@dataclass(frozen=True)
class DataConfig:
    """The images and their augmentation."""

    name: Annotated[Literal["digits", "npz", "idx", "folder"], arg(aliases=["--data"])] = "digits"
    """kind of data set (moespec list datasets)"""
    path: str = ""
    """file or folder of the data set; the digits need none"""
    validation_share: float = 0.2
    """part of each class that is held out when the data have no validation part"""
    crop_padding: int = 0
    """random crop: move images by up to this many pixels; 0 for none"""
    flip: bool = False
    """mirror half of the images"""
    mixup: float = 0.5
    """mix pairs of images with a weight from Beta(mixup, mixup); 0 for none"""
    prefetch: int = 2
    """batches prepared in advance"""

    def __post_init__(self) -> None:
        at_least("data", self, crop_padding=0, mixup=0, prefetch=1)
