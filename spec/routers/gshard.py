"""GShard's top-2: two experts with gates that sum to 1, the second kept at random, more often the larger its gate is.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| scores (T, E) | gates g_{s,E}, the softmax |
| `noise` (T,), uniform on [0, 1) | rnd |
| `balance_weight` | k, the weight of the auxiliary loss |

The ledger of `moespec.spec.gshard` (GS-1 to GS-5) is that of this router.
"""

from dataclasses import dataclass
from typing import Any

from moespec.spec.options import BalanceLossOptions, TokenChoiceOptions
from moespec.spec.ranges import Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import clean_losses, init_kernel, logits, output, token_choice
from moespec.spec.routers.record import Router
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(BalanceLossOptions, TokenChoiceOptions):
    """Options of `gshard`; a token chooses two experts."""

    normalize_selected: bool = True
    hold_unkept: bool = True
    """a second expert that is not kept uses up its place, as in Algorithm 1; if false it requests none (Mesh TensorFlow)"""
    balance_weight: Weight = 0.01

    @property
    def choices(self) -> int:
        return 2


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of two experts by the softmax, with gates that sum to 1 over the two.

    noise: (tokens,), uniform draws from [0, 1): a token keeps its second expert if twice its gate is greater; None
    (evaluation): every token does. train: whether the capacity is that of training.

    Source: GShard, Algorithm 1.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["gshard"]
    >>> options = router.options(width=3, experts=3, tokens=6, capacity_factor=0.75)
    >>> for noise in (None, np.full(6, 0.5)):  # 2 g2 is .54, .36, .88, .75, .24 and .54
    ...     routing = router.route({"kernel": np.eye(3)}, LOGITS, options, noise=noise).routing
    ...     print(slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10))
    [[0, 1, 4], [2, 5, 0], [3, 4, 6]] 4.7332688869
    [[0, 1, 4], [2, 5, 0], [3, 6, 6]] 4.6140659649
    """
    clean = logits(B, params, tokens, options)
    scores = B.softmax_affinity(clean)
    second: dict[str, Any] = {}
    if noise is not None:
        gates = B.normalize_selected(scores, choices=options.choices)
        second = {"keep": B.gshard_keep(gates, noise), "hold": options.hold_unkept}
    routing = token_choice(B, options, scores, train=train, **second)
    return output(B, options, routing, clean_losses(B, clean))


ROUTER = Router(
    __name__,
    "Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1",
    Options,
    init_kernel,
    route,
    lambda options: Noise((options.tokens,), (0.0, 1.0)),
    balances="the load of the experts, by the balance loss",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose, and in training second choices at random",
    functions=("gshard_keep",),
    revision=3,
)
