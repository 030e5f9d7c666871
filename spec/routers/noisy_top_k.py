"""Noisy top-k gating: Token Choice by noisy logits, where the parameter `noise_kernel` determines the scale of the noise.

| here | Shazeer et al. 2017 (arXiv 1701.06538) |
|---|---|
| `kernel`, `noise_kernel` (D, E) | W_g, W_noise |
| `choices` | k |
| `importance_weight`, `load_weight` | w_importance, w_load |
"""

import math
from dataclasses import dataclass

import numpy as np

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.losses import importance_loss
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_affinity, noisy_top_k_load_loss, noisy_top_k_logits
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.algorithms.z_loss import z_loss
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import CapacityOptions, LossOptions, OrderOptions
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers.common import check_logits, output, scoped_balance_loss
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, OrderOptions, CapacityOptions):
    """Options of `noisy_top_k`."""

    capacity_factor: Factor = math.inf
    importance_weight: Weight = 0.1
    choices: Count = 2
    load_weight: Weight = 0.1


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `kernel` and `noise_kernel` (width, experts), all 0. All experts are then equally likely, and the noise scale is log 2."""
    return {name: np.zeros((options.width, options.experts), np.float32) for name in ("kernel", "noise_kernel")}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice based on the noisy logits H. The combine weights are the gates G.

    `batch_priority` uses the noisy logits instead of the gates, because with K = 1 every gate is 1.

    params: `kernel` and `noise_kernel`, (width, experts) each. noise: (tokens, experts), standard normal; None
    (evaluation) for no noise and no load loss. train: whether to use the training capacity.

    Source: Shazeer et al. 2017, section 2.1 and appendix A.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> router = ROUTERS["noisy_top_k"]
    >>> params = {"kernel": np.eye(3), "noise_kernel": np.zeros((3, 3))}  # noise scale log 2
    >>> for noise in (None, NOISE):
    ...     routing = router.route(params, LOGITS, router.options(width=3, experts=3, tokens=6), noise=noise).routing
    ...     print(slot_tokens(routing).tolist(), routing.combine.sum(axis=(0, 2)).round(6).tolist())
    [[0, 1, 4, 2, 3, 5], [2, 5, 0, 1, 6, 6], [3, 4, 6, 6, 6, 6]] [3.513736, 1.744602, 0.741662]
    [[0, 1, 3, 4, 5, 6], [2, 5, 1, 6, 6, 6], [0, 2, 3, 4, 6, 6]] [3.341124, 1.813102, 0.845774]
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    scales = router_logits(tokens, params["noise_kernel"])
    noisy = noisy_top_k_logits(logits, scales, noise)
    gates = noisy_top_k_affinity(noisy, choices=options.choices)
    selection = stop_gradient(noisy)

    # Order and weights.
    order: Array | None = None
    weights: Array | None = gates
    if options.batch_priority != "none":
        order = batch_priority(selection, by=options.batch_priority, choices=options.choices)
    if options.normalize_selected:
        weights = normalize_selected(selection, gates, choices=options.choices)

    # Slots.
    capacity = options.capacity(train=train)
    routing = token_choice(selection, choices=options.choices, capacity=capacity, combine_scores=weights, order=order)

    # Losses.
    losses: dict[str, Array] = {}
    if options.importance_weight:
        losses["importance"] = importance_loss(gates)
    if options.load_weight and noise is not None:
        losses["load"] = noisy_top_k_load_loss(logits, scales, noisy, choices=options.choices)
    if options.balance_weight:
        losses["balance"] = scoped_balance_loss(softmax_affinity(noisy), scope=options.balance_scope)
    if options.z_weight:
        losses["z"] = z_loss(logits)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Shazeer et al. 2017 (arXiv 1701.06538)",
    Options,
    init,
    route,
    lambda options: Noise((options.tokens, options.experts)),
    decays=("kernel", "noise_kernel"),
    balances="the load of the experts, by the importance and load losses",
    cost="2 T D E",
    drops="none, unless a capacity is set",
    revision=5,
)
