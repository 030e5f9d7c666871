"""Token Choice by the Sinkhorn plan: the plan chooses, the softmax combines.

| here | Routers (arXiv 2401.15969), section 2.2 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi |
| `sinkhorn_iterations` | iterations of the Sinkhorn algorithm |

The module `plan` has what all routers by a plan share, with its ledger.
"""

from dataclasses import dataclass

from moespec.spec.choice_options import BalanceCountOptions, LogitOptions, SeveralChoicesOptions
from moespec.spec.options import NoisyLossOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import (
    gating_noise,
    init_kernel,
    noisy_logits,
    noisy_losses,
    output,
    token_choice,
)
from moespec.spec.routers.plan import SinkhornOptions, combine_scores, sinkhorn_plan
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(SinkhornOptions, NoisyLossOptions, BalanceCountOptions, SeveralChoicesOptions, LogitOptions):
    """Options of `sinkhorn_token_choice`."""

    choices: Count = 1
    """experts K that a token chooses"""


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the Sinkhorn plan of the noisy logits, combined with the softmax of the noisy logits.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["sinkhorn_token_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6)
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[0, 1], [5, 6], [2, 3]]
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = sinkhorn_plan(B, options, noisy)
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = token_choice(B, options, B.stop_gradient(plan), combine, train=train)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.2",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, nearly: by a balanced plan (not if the tokens are all alike)",
    cost="T D E, and 2 T E for each of the iterations",
    drops="tokens beyond the capacity of the experts that they choose",
    revision=3,
)
