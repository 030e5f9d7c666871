"""Importance-score routing: Token Choice by the softmax among the most important tokens, also at evaluation.

| here | Sparse-MLP (arXiv 2109.02008), section 2.2 |
|---|---|
| `kernel` (D, E) | gate |
| `drop` | 10 %, the fraction of the channels that are removed |
"""

from dataclasses import dataclass

from moespec.spec.algorithms.importance_score import surviving_tokens
from moespec.spec.choice_options import LogitOptions
from moespec.spec.options import CapacityOptions, NoisyLossOptions
from moespec.spec.ranges import Count, Scalar, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import gating_noise, init_kernel, noisy_logits, noisy_losses, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyLossOptions, CapacityOptions, LogitOptions):
    """Options of `importance_score`."""

    choices: Count = 1
    """experts K that a token chooses"""
    drop: Scalar = 0.1
    """fraction of the tokens that are removed, the least important ones; below 1"""
    importance_weight: Weight = 0.005
    load_weight: Weight = 0.005

    @property
    def items(self) -> tuple[int, int]:
        return surviving_tokens(self.tokens, self.drop), self.choices


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the noisy softmax among the most important tokens.

    noise: (tokens, experts), standard normal. The losses see all tokens, also those that are removed.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["importance_score"]
    >>> options = router.options(width=3, experts=3, tokens=6, drop=0.2)  # token 2 is removed, 0 finds no room
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[4, 1], [5, 6], [3, 6]]
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    routing = B.importance_score_choice(
        B.softmax_affinity(noisy),
        choices=options.choices,
        capacity=options.capacity(train=train),
        drop=options.drop,
    )
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


ROUTER = Router(
    __name__,
    "Lou et al. 2021 (arXiv 2109.02008), eq. (3)",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, by the importance and load losses",
    cost="T D E, and a sort of the tokens",
    drops="the fraction `drop` of least importance, and tokens beyond the capacity of the experts that they choose",
    functions=("importance_score_choice", "importance_score_order"),
    revision=4,
)
