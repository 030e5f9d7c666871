"""Noisy top-k gating: Token Choice by logits with noise of a learned scale, combined with the gates of the chosen.

| here | Shazeer et al. 2017 (arXiv 1701.06538) |
|---|---|
| `kernel`, `noise_kernel` (D, E) | W_g, W_noise |
| `choices` | k |
| `importance_weight`, `load_weight` | w_importance, w_load |
"""

import math
from dataclasses import dataclass

import numpy as np

from moespec.spec.options import BalanceLossOptions, TokenChoiceOptions
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import Losses, balance, logits, output, token_choice
from moespec.spec.routers.record import Router
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(BalanceLossOptions, TokenChoiceOptions):
    """Options of `noisy_top_k`."""

    choices: Count = 2
    """experts K that a token chooses"""
    capacity_factor: Factor = math.inf
    importance_weight: Weight = 0.1
    load_weight: Weight = 0.1
    """weight of the load loss, which there is only with noise"""


def init(generator: np.random.Generator, options: Options) -> Params:
    """`kernel` and `noise_kernel` (width, experts), all 0: every expert is equally likely, and the noise has the scale log 2."""
    return {name: np.zeros((options.width, options.experts), np.float32) for name in ("kernel", "noise_kernel")}


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the noisy logits H, combined with the gates G.

    With `batch_priority` the priority is the noisy logit, not the gate: with K = 1 every gate is 1.

    params: `kernel` and `noise_kernel`, (width, experts) each. noise: (tokens, experts), a draw of the standard normal;
    None (evaluation) for no noise and no load loss. train: whether the capacity is that of training.

    Source: Shazeer et al. 2017, section 2.1 and appendix A.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS, NOISE
    >>> router = ROUTERS["noisy_top_k"]
    >>> params = {"kernel": np.eye(3), "noise_kernel": np.zeros((3, 3))}  # noise of the scale log 2
    >>> for noise in (None, NOISE):
    ...     routing = router.route(params, LOGITS, router.options(width=3, experts=3, tokens=6), noise=noise).routing
    ...     print(slot_tokens(routing).tolist(), routing.combine.sum(axis=(0, 2)).round(6).tolist())
    [[0, 1, 4, 2, 3, 5], [2, 5, 0, 1, 6, 6], [3, 4, 6, 6, 6, 6]] [3.513736, 1.744602, 0.741662]
    [[0, 1, 3, 4, 5, 6], [2, 5, 1, 6, 6, 6], [0, 2, 3, 4, 6, 6]] [3.341124, 1.813102, 0.845774]
    """
    clean = logits(B, params, tokens, options)
    scales = B.router_logits(tokens, params["noise_kernel"])
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    gates = B.noisy_top_k_affinity(noisy, choices=options.choices)
    routing = token_choice(B, options, B.stop_gradient(noisy), gates, train=train)
    load = {"load": lambda: B.noisy_top_k_load_loss(clean, scales, noisy, choices=options.choices)}
    losses: Losses = {
        "importance": lambda: B.importance_loss(gates),
        **({} if noise is None else load),
        "balance": lambda: balance(B, options, B.softmax_affinity(noisy)),
        "z": lambda: B.z_loss(clean),
    }
    return output(B, options, routing, losses)


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
    drops="none, unless a capacity is given",
    revision=4,
)
