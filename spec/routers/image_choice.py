"""Image choice: an image chooses experts, which process all tokens of the image.

| here | Mobile V-MoE (arXiv 2309.04354), section 2 |
|---|---|
| `kernel` (D, E) | W |
| scores (images, E) | softmax(W x), of an image x |
| `choices` | k |

For one image, a layer needs the parameters of only `choices` experts. The losses balance the choices of all images in a
group. In a group with one image, the losses push the image toward choosing all experts equally.

Ambiguity ledger

IM-2: Where is the router that chooses the experts of an image?
    Reading: each layer has a router and chooses experts separately.
    Alternative b: a single router before the MoE layers chooses experts once for all layers.
        By: the paper, section 2.2 (Figure 2c).
IM-3: Which losses train the router?
    Reading: the task loss (through the combine weights) and all balance losses with non-zero weights train the router.
    Alternative b: a cross-entropy loss for the image's super-class, with one expert per super-class, also trains the router.
        By: the paper, section 2.2.
"""

import math
from dataclasses import dataclass
from typing import Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.image_pooling import check_images, pool_images, spread_images
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.checks import check_size
from moespec.spec.option_groups import CapacityOptions, LossOptions, OrderOptions
from moespec.spec.ranges import Count, Factor
from moespec.spec.routers.common import auxiliary_losses, init_kernel, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, OrderOptions, CapacityOptions):
    """Options of `image_choice`. By default, the capacity is unlimited, so the router drops no token."""

    capacity_factor: Factor = math.inf
    choices: Count = 1
    """experts K per token, the same for all tokens of an image"""
    images: Count = 1
    """images per group, all with the same number of tokens, one image after another"""
    pool: Literal["mean", "first"] = "mean"
    """input of the router: the mean of the image's tokens, or its first token, a class token"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_images(self.images, self.tokens)


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice based on the softmax of an image's logits, which all tokens of the image share. This router uses no noise.

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

    # Logits of images, and scores of the tokens in the images.
    logits = router_logits(pool_images(tokens, images=options.images, pool=options.pool), params["kernel"])
    check_size("kernel", logits, -1, options.experts, "options.experts")
    scores = spread_images(softmax_affinity(logits), tokens=options.tokens)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(scores, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, scores)
    if options.normalize_selected:
        weights = normalize_selected(selection, weights, choices=options.choices)

    # Slots.
    capacity = options.capacity(train=train)
    routing = token_choice(
        selection, choices=options.choices, capacity=capacity, combine_scores=weights, order=order, keep=keep
    )
    return output(options, routing, auxiliary_losses(options, logits))


ROUTER = Router(
    __name__,
    "Daxberger et al. 2023 (arXiv 2309.04354)",
    Options,
    init_kernel,
    route,
    models=("Mobile V-MoE",),
    balances="the images of each expert in a group, by losses with non-zero weights",
    cost="T D for the means of the images, plus D E per image",
    drops="none, unless a capacity is set",
    replays=True,
    revision=3,
)
