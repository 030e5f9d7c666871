"""Token Choice by the sparsity-constrained plan: tokens choose by a plan that gives each of them to at most K experts.

| here | Routers (arXiv 2401.15969), sections 2.1 and 2.5 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi, of at most K experts for each token |
| `choices` | k of both sections |
| `transport_steps` | iterations of the solver |

The paper has this plan for Expert Choice alone; the form for tokens is that of google-research/vmoe. Every token chooses K
experts, also one that the plan gives to fewer.

Ambiguity ledger

RT-6: What happens to a choice whose plan is 0?
    Reading: what happens to any other: of the experts of plan 0 that of the lowest index is chosen, the token asks it
        for a slot, and the softmax weights its output, or the plan with 0.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common and
        _get_top_experts_per_item_einsum_dispatcher.
    Alternative b: it is not made, and asks for no slot.
    Alternative c: it is made, but its weight is 0, also where the softmax combines.

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
from moespec.spec.routers.plan import SparsePlanOptions, combine_scores, sparse_plan
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(SparsePlanOptions, NoisyLossOptions, BalanceCountOptions, SeveralChoicesOptions, LogitOptions):
    """Options of `sparsity_constrained_token_choice`."""

    choices: Count = 1
    """experts K that a token chooses"""


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the plan of the softmax with at most K experts for each token, combined with the softmax or the plan.

    The plan carries no gradient: where it weights the outputs, only the losses of the router train the kernel. Rows of the
    plan of the semi-dual sum to 1, so that batch priority by the sum of the choices orders tokens by rounding alone, as
    that by the largest does for tokens that the plan gives to one expert.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["sparsity_constrained_token_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6)
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[0, 1], [5, 6], [2, 3]]
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = sparse_plan(B, options, B.softmax_affinity(noisy), capacity=options.choices, sparsity="token")
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = token_choice(B, options, plan, combine, train=train)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.5",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, a little: by a plan on its way to a balanced one",
    cost="T D E, and a choice of K experts for each token in each of the steps",
    drops="tokens beyond the capacity of the experts that they choose",
    revision=2,
)
