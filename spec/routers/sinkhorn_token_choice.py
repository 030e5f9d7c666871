"""Token Choice by the Sinkhorn plan: the plan chooses, the softmax combines.

| here | Routers (arXiv 2401.15969), section 2.2 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi |
| `sinkhorn_iterations` | iterations of the Sinkhorn algorithm |

Ambiguity ledger

RT-1: Of which logits is the combine softmax, if there is noise?
    Reading: of the noisy ones, which made the plan.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopItemsPerExpertRouter.
    Alternative b: of the clean ones (`combine_from_clean_logits`).
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
SK-5: Are the Sinkhorn routers noisy in training?
    Reading: yes, the logits of the plan get noise of the standard deviation `noise_multiplier / E`.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
    Alternative b: no (`noise_multiplier=0`).
        By: the paper, eq. (8).
SK-6: Which choices does the load loss of a Sinkhorn router count?
    Reading: the K largest logits of a token, though the plan chooses.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
    Alternative b: its K largest entries of the plan.

Often done differently

RT-2: Which weights do the plan routers combine with?
    Reading: the softmax. The plan selects and carries no gradient.
        By: the paper, sections 2.2 and 3.4;
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ot_routing.py, _replace_combine_weights.
    Alternative b: the plan (`combine_with="plan"`); a Sinkhorn plan is then differentiated through its iterations.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ot_routing.py,
        BaseOTNoisyTopExpertsPerItemRouter (use_softmax_combine_weights=False).
"""

from dataclasses import dataclass

from moespec.spec.options import NoisyLossOptions, TokenChoiceOptions
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
class Options(SinkhornOptions, NoisyLossOptions, TokenChoiceOptions):
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
    revision=2,
)
