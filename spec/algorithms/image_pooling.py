"""Whole images in a router: the tokens of an image become one, and what was computed for it goes to all of them.

Ambiguity ledger

IM-1: What does a router see of a whole image?
    Reading: the mean of its tokens.
        By: CASE-Lab-UMD/Router-Tuning-Mixture-of-Depths, utils/model/model_patch.py, _compute_routing_state (of a sequence).
    Alternative b: its first token, the class token (`pool="first"`).
"""

from typing import Any, Literal

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_option, plural
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array
from moespec.spec.values import as_array

__all__ = ["pool_images", "spread_images"]

ALGORITHMS = (
    Algorithm("image_pooling", "Daxberger et al. 2023 (arXiv 2309.04354)", 1, ("pool_images", "spread_images")),
)
POOLS = ("mean", "first")


def pool_images(tokens: ArrayLike, *, images: int, pool: Literal["mean", "first"] = "mean") -> Array:
    """One row for each image, of a group that has the tokens of one image after those of another.

    Args:
        tokens: (tokens, width).
        images: their number, at least 1, which divides that of the tokens.
        pool: "mean" of the tokens of an image, or the "first" of them.

    Returns:
        (images, width).

    Raises:
        ConfigError: `images` does not divide the tokens.

    Source: Daxberger et al. 2023, section 2.2 (per-image routing), which does not say how.

    >>> pool_images([[1.0, 0.0], [3.0, 1.0], [0.0, 2.0], [0.0, 4.0]], images=2).tolist()
    [[2.0, 0.5], [0.0, 3.0]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    of_image = tokens.reshape(-1, check_images(images, len(tokens)), tokens.shape[1])
    check_option("pool", pool, POOLS)
    return of_image.mean(axis=1) if pool == "mean" else of_image[:, 0]


def spread_images(scores: ArrayLike, *, tokens: int) -> Array:
    """The row of an image for each of its tokens.

    Args:
        scores: (images, experts).
        tokens: of all images; a multiple of their number.

    Returns:
        (tokens, experts).

    Raises:
        ConfigError: `tokens` is not a multiple of the number of images.

    Source: Daxberger et al. 2023, section 2.2 (per-image routing).

    >>> spread_images([[0.75, 0.25], [0.5, 0.5]], tokens=4).tolist()
    [[0.75, 0.25], [0.75, 0.25], [0.5, 0.5], [0.5, 0.5]]
    """
    scores = as_array("scores", scores, "images experts")
    return np.repeat(scores, check_images(len(scores), tokens, name="tokens"), axis=0)


def check_images(images: Any, tokens: Any, *, name: str = "images") -> int:
    """The tokens of an image; `ConfigError` unless both are at least 1 and the tokens are as many for each image."""
    number, total = check_at_least("images", images, 1), check_at_least("tokens", tokens, 1)
    if total % number:
        raise ConfigError(f"{name}: {plural(total, 'tokens')} cannot be split into {plural(number, 'images')}")
    return total // number
