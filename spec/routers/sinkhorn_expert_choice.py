"""Expert Choice by the Sinkhorn plan: the plan selects the tokens, and the softmax provides the combine weights.

| here | Routers (arXiv 2401.15969), section 2.4 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi |
| `sinkhorn_iterations` | iterations of the Sinkhorn algorithm |

The module `plan` contains the code and the ledger entries that all plan-based routers share.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.sinkhorn import sinkhorn_affinity
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import NoisyOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output
from moespec.spec.routers.plan import combine_scores
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyOptions):
    """Options of `sinkhorn_expert_choice`."""

    experts_choose: ClassVar[bool] = True
    combine_with: Literal["softmax", "plan"] = "softmax"
    combine_from_clean_logits: bool = False
    sinkhorn_iterations: Count = 20


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Experts choose tokens by the Sinkhorn plan of the noisy logits. By default, the noisy softmax provides the combine weights.

    noise, train: see `softmax_token_choice`. With `jitter`, the noise is applied to the tokens instead of the logits.
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)

    # Plan. Unless the plan provides the combine weights, stop_gradient prevents gradients through the plan.
    planned = noisy if options.combine_with == "plan" else stop_gradient(noisy)
    plan = sinkhorn_affinity(planned, iterations=options.sinkhorn_iterations)
    combine_with, from_clean = options.combine_with, options.combine_from_clean_logits
    combine = combine_scores(plan, logits, noisy, combine_with=combine_with, from_clean=from_clean)

    # Slots.
    routing = expert_choice(stop_gradient(plan), capacity=options.capacity(train=train), combine_scores=combine)

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.4",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, exactly; how often tokens are chosen, approximately, by a balanced plan",
    cost="T D E, plus 2 T E per iteration",
    drops="tokens that no expert chooses",
    revision=4,
)
