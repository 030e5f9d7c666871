"""The section `hash` of a run's configuration."""

from dataclasses import dataclass
from typing import Literal

from moespec.models.checks import Number, check_fields

__all__ = ["HashConfig"]


@dataclass(frozen=True)
class HashConfig:
    """How the codebook and the tables of the router hash are made, which then travel in the checkpoints."""

    path: str = ""
    """a file of moespec hash-table; without one they are made of the training images"""
    kind: Literal["auto", "random", "balanced", "clustered", "dispersed"] = "auto"
    """kind of table; auto: balanced, or random for several hashes"""
    images: Number = 10000
    """training images that are looked at"""

    def __post_init__(self) -> None:
        check_fields("hash", self)
