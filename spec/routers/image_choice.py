"""Image choice: an image chooses its experts, and all its tokens go there.

| here | Mobile V-MoE (arXiv 2309.04354), section 2 |
|---|---|
| `kernel` (D, E) | W |
| scores (images, E) | softmax(W x), of an image x |
| `choices` | k |

An image needs the parameters of `choices` experts alone. The losses are of images, so that they see what a group of several does;
of a group of one they ask that this image chooses all experts alike.

Ambiguity ledger

IM-2: Where is the router?
    Reading: in each layer, which chooses anew.
    Alternative b: before the layers with experts, once for all of them.
        By: the paper, section 2.2 (Figure 2c).
IM-3: What trains the router?
    Reading: the loss through the weights, and the losses of balance with a weight.
    Alternative b: a cross-entropy with the super-class of the image, too, one for each expert.
        By: the paper, section 2.2.
"""

import math
from dataclasses import dataclass
from typing import Literal

from moespec.spec.algorithms.image_pooling import check_images
from moespec.spec.checks import check_size
from moespec.spec.options import BalanceLossOptions, TokenChoiceOptions
from moespec.spec.ranges import Count, Factor
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import clean_losses, init_kernel, output, token_choice
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(BalanceLossOptions, TokenChoiceOptions):
    """Options of `image_choice`; without a capacity factor it drops no token."""

    choices: Count = 1
    """experts K that a token chooses, the same for all of its image"""
    images: Count = 1
    """images of a group, which has as many tokens of each, one image after another"""
    pool: Literal["mean", "first"] = "mean"
    """what the router sees of an image: the mean of its tokens, or the first, a class token"""
    capacity_factor: Factor = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_images(self.images, self.tokens)


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the softmax of an image's logits, the same for all its tokens. There is no noise.

    Source: Daxberger et al. 2023, section 2.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["image_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6, images=2, slots_per_expert=4)
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[0, 1, 2, 3], [6, 6, 6, 6], [6, 6, 6, 6]]
    """
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    logits = B.router_logits(B.pool_images(tokens, images=options.images, pool=options.pool), params["kernel"])
    check_size("kernel", logits, -1, options.experts, "options.experts")
    scores = B.spread_images(B.softmax_affinity(logits), tokens=options.tokens)
    return output(B, options, token_choice(B, options, scores, train=train), clean_losses(B, options, logits))


ROUTER = Router(
    __name__,
    "Daxberger et al. 2023 (arXiv 2309.04354)",
    Options,
    init_kernel,
    route,
    models=("Mobile V-MoE",),
    balances="the images of the experts in a group, by its losses if they have weights",
    cost="T D for the mean of images, D E for each of them",
    drops="none, unless a capacity is given",
    revision=2,
)
