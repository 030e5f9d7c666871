"""Strictly balanced gating: experts choose equal numbers of tokens in training, and all tokens above a threshold at evaluation.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix F |
|---|---|
| `kernel` (D, E) | W_sigma |
| `thresholds` (E,) | T |
| `capacity_factor` | k, the mean number of experts of a token |
| capacity in training | m = k \\|X\\| / n |
| group | the batch X |

The paper states no weight for the threshold loss. The gates have no noise, so there is no load loss.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.strictly_balanced import batchwise_mask, masked_gates, threshold_loss, threshold_mask
from moespec.spec.option_groups import CapacityOptions, LossOptions
from moespec.spec.ranges import Factor, Weight
from moespec.spec.routers.common import auxiliary_losses, check_logits, init_kernel, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, CapacityOptions):
    """Options of `strictly_balanced`."""

    experts_choose: ClassVar[bool] = True
    capacity_factor: Factor = 2.0
    eval_capacity_factor: Factor | None = None
    """capacity factor at evaluation; None for no limit, so that all tokens above a threshold have a slot"""
    threshold_weight: Weight = 0.001
    """weight of the threshold loss, a sum over tokens and experts, in training only"""

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert. Raises ConfigError if C is below 1 or above the number of tokens."""
        if not train and self.eval_capacity_factor is None:
            return self.tokens
        return super().capacity(train=train)


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `kernel` (width, experts), and `thresholds` (experts,), all equal to 1 / experts."""
    thresholds = np.full(options.experts, 1 / options.experts, np.float32)
    return {**init_kernel(generator, options), "thresholds": thresholds}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """In training, Expert Choice based on the softmax. At evaluation, an expert takes all tokens whose gates exceed the expert's threshold.
    A token's chosen gates are divided by their sum. With `eval_capacity_factor`, a full expert keeps the tokens with the largest weights.

    params: `kernel` (width, experts) and `thresholds` (experts,). train: if True, each expert chooses C tokens;
    if False, the thresholds choose the tokens. This router uses no noise.

    Source: Shazeer et al. 2017, appendix F.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["strictly_balanced"]
    >>> options = router.options(width=3, experts=3, tokens=6, capacity_factor=1.5)
    >>> params = {"kernel": np.eye(3), "thresholds": np.array([0.5, 0.25, 0.2])}
    >>> for train in (True, False):
    ...     result = router.route(params, LOGITS, options, train=train)
    ...     print(slot_tokens(result.routing).tolist(), result.routing.combine.sum(axis=(0, 2)).round(6).tolist())
    [[4, 1, 0], [5, 2, 0], [3, 2, 4]] [2.611856, 1.891401, 1.496744]
    [[0, 1, 4, 6, 6, 6], [5, 2, 6, 6, 6, 6], [3, 2, 6, 6, 6, 6]] [3.0, 1.622459, 1.377541]
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    gates, thresholds, capacity = softmax_affinity(logits), params["thresholds"], options.capacity(train=train)

    # Slots.
    if train:
        weights = masked_gates(gates, batchwise_mask(gates, capacity=capacity))
        routing = expert_choice(gates, capacity=capacity, combine_scores=weights)
    else:
        weights = masked_gates(gates, threshold_mask(gates, thresholds))
        routing = expert_choice(weights, capacity=capacity, drop_zero=True)

    # Losses.
    losses: dict[str, Array] = {}
    if train and options.threshold_weight:
        losses["threshold"] = threshold_loss(gates, thresholds, capacity=capacity)
    return output(options, routing, {**losses, **auxiliary_losses(options, logits)})


ROUTER = Router(
    __name__,
    "Shazeer et al. 2017 (arXiv 1701.06538)",
    Options,
    init,
    route,
    balances="the load of the experts: exactly in training; at evaluation as well as the thresholds are trained",
    cost="T D E; at evaluation an expert may get every token",
    drops="tokens that no expert chooses",
    revision=3,
)
