"""Image-level routing: pools the tokens of an image into one row, and repeats a row for each token of the image."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.image_pooling import POOLS, check_images
from moespec.spec.checks import check_option, check_scores

__all__ = ["pool_images", "spread_images"]


def pool_images(xp: Namespace[Array], tokens: Array, *, images: int, pool: str = "mean") -> Array:
    """tokens (G, T, D) -> (G, images, D)."""
    check_scores("tokens", tokens, "groups tokens width")
    groups, count, width = tokens.shape
    of_image = xp.promote(tokens).reshape((groups, images, check_images(images, count), width))
    check_option("pool", pool, POOLS)
    return xp.mean(of_image, 2) if pool == "mean" else of_image[:, :, 0]


def spread_images(xp: Namespace[Array], scores: Array, *, tokens: int) -> Array:
    """scores (G, images, E) -> (G, T, E)."""
    check_scores("scores", scores, "groups images experts")
    groups, images, experts = scores.shape
    each = check_images(images, tokens, name="tokens")
    spread = xp.broadcast_to(scores.reshape((groups, images, 1, experts)), (groups, images, each, experts))
    return spread.reshape((groups, tokens, experts))
