"""Importance-score routing: in training and at evaluation, only the most important tokens choose experts, by the softmax.

| here | Sparse-MLP (arXiv 2109.02008), section 2.2 |
|---|---|
| `kernel` (D, E) | gate |
| `drop` | 10 %, the fraction of channels that are removed |
"""

from dataclasses import dataclass

from moespec.spec.algorithms.importance_score import importance_score_choice, surviving_tokens
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.option_groups import NoisyOptions
from moespec.spec.ranges import Count, Scalar, Weight
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyOptions):
    """Options of `importance_score`."""

    importance_weight: Weight = 0.005
    load_weight: Weight = 0.005
    choices: Count = 1
    drop: Scalar = 0.1
    """fraction of the tokens to drop, the least important first; below 1"""

    @property
    def requests(self) -> tuple[int, int]:
        """The number of tokens that remain, and the number of slots that each remaining token requests."""
        return surviving_tokens(self.tokens, self.drop), self.choices


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice based on the noisy softmax, for the most important tokens only.

    noise: see `softmax_token_choice`. The losses include the removed tokens.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["importance_score"]
    >>> options = router.options(width=3, experts=3, tokens=6, drop=0.2)  # token 2 is removed; token 0 gets no slot
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[4, 1], [5, 6], [3, 6]]
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)

    # Slots.
    routing = importance_score_choice(
        softmax_affinity(noisy), choices=options.choices, capacity=options.capacity(train=train), drop=options.drop
    )

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise, choices=options.choices)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Lou et al. 2021 (arXiv 2109.02008), eq. (3)",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, by the importance and load losses",
    cost="T D E, plus a sort of the tokens",
    drops="the least important fraction `drop`, and tokens beyond the capacity of their chosen experts",
    functions=("importance_score_choice", "importance_score_order"),
    revision=5,
)
