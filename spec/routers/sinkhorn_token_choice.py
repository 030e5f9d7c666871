"""Token Choice by the Sinkhorn plan: the plan selects the experts, and the softmax provides the combine weights.

| here | Routers (arXiv 2401.15969), section 2.2 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi |
| `sinkhorn_iterations` | iterations of the Sinkhorn algorithm |

The module `plan` contains the code and the ledger entries that all plan-based routers share.
"""

from dataclasses import dataclass
from typing import Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.sinkhorn import sinkhorn_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import TokenChoiceOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output, replay
from moespec.spec.routers.plan import combine_scores
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(TokenChoiceOptions):
    """Options of `sinkhorn_token_choice`."""

    combine_with: Literal["softmax", "plan"] = "softmax"
    combine_from_clean_logits: bool = False
    sinkhorn_iterations: Count = 20
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
    """Tokens choose experts by the Sinkhorn plan of the noisy logits. By default, the noisy softmax provides the combine weights.

    noise, train: see `softmax_token_choice`. With `jitter`, the noise is applied to the tokens instead of the logits.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["sinkhorn_token_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6)
    >>> slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist()
    [[0, 1], [5, 6], [2, 3]]
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)

    # Plan. Unless the plan provides the combine weights, stop_gradient prevents gradients through the plan.
    planned = noisy if options.combine_with == "plan" else stop_gradient(noisy)
    plan = sinkhorn_affinity(planned, iterations=options.sinkhorn_iterations)
    combine_with, from_clean = options.combine_with, options.combine_from_clean_logits
    combine = combine_scores(plan, logits, noisy, combine_with=combine_with, from_clean=from_clean)
    selection = stop_gradient(plan)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(selection, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, selection, combine)
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
    "Liu et al. 2024 (arXiv 2401.15969), section 2.2",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, approximately, by a balanced plan (not if all tokens are alike)",
    cost="T D E, plus 2 T E per iteration",
    drops="tokens beyond the capacity of their chosen experts",
    replays=True,
    revision=4,
)
