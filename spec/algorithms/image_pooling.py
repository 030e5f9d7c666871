"""Per-image routing: pools the tokens of each image into one vector, and copies the scores of this vector to all tokens of the image.

Ambiguity ledger

IM-1: What is the input of a router that routes images?
    Reading: the input is the mean of the tokens of the image.
        By: CASE-Lab-UMD/Router-Tuning-Mixture-of-Depths, utils/model/model_patch.py, _compute_routing_state (of a sequence).
    Alternative b: the input is the first token of the image, the class token (`pool="first"`).
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
    """Pools the tokens of each image into one vector. The tokens of an image are consecutive rows of `tokens`.

    Args:
        tokens: (tokens, width).
        images: number of images, at least 1, a divisor of the number of tokens.
        pool: "mean" for the mean of the tokens of an image, "first" for the first token of an image.

    Returns:
        (images, width).

    Raises:
        ConfigError: `images` does not divide the number of tokens.

    Source: Daxberger et al. 2023, section 2.2 (per-image routing), which does not specify the pooling.

    >>> pool_images([[1.0, 0.0], [3.0, 1.0], [0.0, 2.0], [0.0, 4.0]], images=2).tolist()
    [[2.0, 0.5], [0.0, 3.0]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    of_image = tokens.reshape(-1, check_images(images, len(tokens)), tokens.shape[1])
    check_option("pool", pool, POOLS)
    return of_image.mean(axis=1) if pool == "mean" else of_image[:, 0]


def spread_images(scores: ArrayLike, *, tokens: int) -> Array:
    """Copies the scores of each image to all tokens of the image.

    Args:
        scores: (images, experts).
        tokens: number of tokens of all images, a multiple of the number of images.

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
    """Returns the number of tokens per image. Raises `ConfigError` unless both numbers are at least 1 and `images` divides `tokens`."""
    number, total = check_at_least("images", images, 1), check_at_least("tokens", tokens, 1)
    if total % number:
        raise ConfigError(f"{name}: {plural(total, 'tokens')} cannot be split into {plural(number, 'images')}")
    return total // number
