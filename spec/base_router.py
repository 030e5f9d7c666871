"""The router of BASE layers: balanced in training, greedy at evaluation."""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.base_layers import base_assignment, base_greedy, base_routing, even_slots
from moespec.spec.checks import check_size
from moespec.spec.initial import orthogonal
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, no_noise
from moespec.spec.softmax import router_logits

__all__ = ["BASE", "base"]


def base(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """The router: the best balanced assignment if `train`, with its gap among the metrics; else the greedy one.

    Without noise and without auxiliary losses. The group is meant to be the whole batch. Section 14.

    >>> from moespec.spec import slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> config = BASE.configure(width=3, experts=3, tokens=6)
    >>> for train in (True, False):
    ...     routing = base({"kernel": np.eye(3)}, LOGITS, config, train=train).routing
    ...     print(slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10))
    [[1, 4], [0, 5], [2, 3]] 4.4452268614
    [[0, 1, 4, 6, 6, 6], [2, 5, 6, 6, 6, 6], [3, 6, 6, 6, 6, 6]] 4.7987447712
    """
    scores = router_logits(tokens, params["kernel"])
    check_size("tokens", scores, 0, config.tokens, "config.tokens")
    check_size("kernel", scores, 1, config.experts, "config.experts")
    reported: dict[str, Array] = {}
    if train:
        assignment = base_assignment(scores)
        routing = base_routing(scores, assignment.expert, capacity=even_slots(scores))
        reported = {"gap": assignment.gap}
    else:
        routing = base_routing(scores, base_greedy(scores), capacity=config.tokens)
    return RouterOutput(routing, {}, {**routing_metrics(routing), **reported})


def _init(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`kernel` (width, experts), its columns the embeddings of the experts: orthogonal, with the norm 0.1."""
    return {"kernel": orthogonal(generator, (config.width, config.experts), 0.1)}


BASE = Router(
    "base",
    "Lewis et al. 2021 (arXiv 2103.16716)",
    _init,
    base,
    {"noise_multiplier": 0.0},
    no_noise,
    balances="the load of the experts, exactly in training: by the best balanced assignment; nothing at evaluation",
    cost="T D E, and in training the search for the best assignment",
    drops="none",
)
"""The router of BASE layers."""
