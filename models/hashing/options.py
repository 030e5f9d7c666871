"""The section `hash` of a run's configuration."""

from dataclasses import dataclass
from typing import Literal

from moespec.models.checks import at_least

__all__ = ["HashConfig"]


@dataclass(frozen=True)
class HashConfig:
    """How the codebook and the tables of the router hash are made, which then travel in the checkpoints."""

    path: str = ""
    """a file of moespec hash-table; without one they are made of the training images"""
    kind: Literal["auto", "random", "balanced", "clustered", "dispersed"] = "auto"
    """kind of table; auto: balanced, or random for several hashes"""
    images: int = 10000
    """training images that are looked at"""

    def __post_init__(self) -> None:
        at_least("hash", self, images=1)
