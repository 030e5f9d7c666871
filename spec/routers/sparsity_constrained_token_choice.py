"""Token Choice by the sparsity-constrained plan: tokens choose by a plan that assigns each token to at most K experts.

| here | Routers (arXiv 2401.15969), sections 2.1 and 2.5 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi, at most K experts per token |
| `choices` | k in both sections |
| `transport_steps` | iterations of the solver |

The paper defines this plan only for Expert Choice. The plan for Token Choice follows google-research/vmoe. Every token
chooses K experts, even if the plan assigns the token to fewer experts.

Ambiguity ledger

RT-6: What happens to a choice whose plan entry is 0?
    Reading: the choice is treated like any other: the token chooses the expert with the lowest index among those with
        plan entry 0 and requests a slot. The softmax weights the output or, if the plan combines, the weight is 0.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common and
        _get_top_experts_per_item_einsum_dispatcher.
    Alternative b: the choice is not made and requests no slot.
    Alternative c: the choice is made, but its weight is 0 even if the softmax combines.

The module `plan` contains the code and the ledger entries that all plan-based routers share.
"""

from dataclasses import dataclass
from typing import Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.algorithms.sparse_transport import sparse_transport_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import TokenChoiceOptions
from moespec.spec.ranges import Count, Scalar
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output, replay
from moespec.spec.routers.plan import combine_scores
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(TokenChoiceOptions):
    """Options of `sparsity_constrained_token_choice`."""

    noise_multiplier: Scalar = 0.0
    combine_with: Literal["softmax", "plan"] = "softmax"
    combine_from_clean_logits: bool = False
    transport_objective: Literal["semi_dual", "dual"] = "semi_dual"
    transport_steps: Count = 20
    choices: Count = 1


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice based on a plan with at most K experts per token. The softmax or the plan provides the combine weights.

    noise, train: see `softmax_token_choice`. With `jitter`, the noise is applied to the tokens instead of the logits.

    The plan carries no gradient. If the plan provides the combine weights, only the auxiliary losses train the kernel. With
    `transport_objective="semi_dual"`, each row of the plan sums to 1. Rounding errors then decide the order of all tokens if
    `batch_priority="sum"`, and the order of the tokens that the plan assigns to only one expert if `batch_priority="max"`.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["sparsity_constrained_token_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6)
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[0, 1], [5, 6], [2, 3]]
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)

    # Plan. The plan carries no gradient.
    objective, steps = options.transport_objective, options.transport_steps
    utility = stop_gradient(softmax_affinity(noisy))
    plan = sparse_transport_affinity(
        utility, objective=objective, steps=steps, capacity=options.choices, sparsity="token"
    )
    combine_with, from_clean = options.combine_with, options.combine_from_clean_logits
    combine = combine_scores(plan, logits, noisy, combine_with=combine_with, from_clean=from_clean)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(plan, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, plan, combine)
    if options.normalize_selected and options.normalize_when == "before":
        weights = normalize_selected(selection, weights, choices=options.choices, norm=options.normalize_norm)
    normalize_after = options.normalize_selected and options.normalize_when == "after"

    # Slots.
    routing = token_choice(
        selection,
        choices=options.choices,
        capacity=options.capacity(train=train),
        combine_scores=weights,
        order=order,
        keep=keep,
        slot_order=options.slot_order,
        normalize=options.normalize_norm if normalize_after else None,
    )

    # Losses.
    counted = options.choices if options.balance_counts == "all" else None
    losses = auxiliary_losses(options, logits, noisy, noise, choices=options.choices, counted=counted)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.5",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, weakly, by a plan that approaches a balanced one",
    cost="T D E, plus a selection of K experts per token in each step",
    drops="tokens beyond the capacity of their chosen experts",
    replays=True,
    revision=3,
)
