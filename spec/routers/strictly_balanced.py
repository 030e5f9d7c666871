"""Strictly balanced gating: experts choose as many tokens each in training, and those above a threshold at evaluation.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix F |
|---|---|
| `kernel` (D, E) | W_sigma |
| `thresholds` (E,) | T |
| `capacity_factor` | k, the mean number of experts of a token |
| capacity in training | m = k \\|X\\| / n |
| group | the batch X |

The paper gives no weight of the threshold loss and has no noise in these gates, so that there is no load loss.
"""

from dataclasses import dataclass

import numpy as np

from moespec.spec.options import BalanceLossOptions, ExpertChoiceOptions
from moespec.spec.ranges import Factor, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import Losses, clean_losses, init_kernel, logits, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(BalanceLossOptions, ExpertChoiceOptions):
    """Options of `strictly_balanced`."""

    capacity_factor: Factor = 2.0
    eval_capacity_factor: Factor | None = None
    """the capacity factor at evaluation; None for room for all tokens that are above a threshold"""
    threshold_weight: Weight = 0.001
    """weight of the loss of the thresholds, a sum over tokens and experts, which there is only in training"""

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert. Raises ConfigError if it has none, or more than tokens."""
        if not train and self.eval_capacity_factor is None:
            return self.tokens
        return super().capacity(train=train)


def init(generator: np.random.Generator, options: Options) -> Params:
    """`kernel` (width, experts), and `thresholds` (experts,), 1 / experts each."""
    thresholds = np.full(options.experts, 1 / options.experts, np.float32)
    return {**init_kernel(generator, options), "thresholds": thresholds}


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the softmax if `train`, else of all gates above the thresholds; the gates of a token are divided by
    their sum. With a capacity at evaluation an expert keeps the tokens of the largest gates after this division.

    params: `kernel` (width, experts) and `thresholds` (experts,). train: whether the masks are those of training. There
    is no noise.

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
    clean, thresholds = logits(B, params, tokens, options), params["thresholds"]
    gates, capacity = B.softmax_affinity(clean), options.capacity(train=train)
    losses: Losses = clean_losses(B, options, clean)
    if train:
        weights = B.masked_gates(gates, B.batchwise_mask(gates, capacity=capacity))
        routing = B.expert_choice(gates, capacity=capacity, combine_scores=weights)
        losses = {"threshold": lambda: B.threshold_loss(gates, thresholds, capacity=capacity), **losses}
    else:
        weights = B.masked_gates(gates, B.threshold_mask(gates, thresholds))
        routing = B.expert_choice(weights, capacity=capacity, drop_zero=True)
    return output(B, options, routing, losses)


ROUTER = Router(
    __name__,
    "Shazeer et al. 2017 (arXiv 1701.06538)",
    Options,
    init,
    route,
    balances="the load of the experts: exactly in training, about as well as the thresholds are trained at evaluation",
    cost="T D E; at evaluation an expert may be given every token",
    drops="tokens that no expert chooses",
    revision=2,
)
