"""Expert Choice by the Sinkhorn plan: experts choose by the plan, the softmax combines.

| here | Routers (arXiv 2401.15969), section 2.4 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi |
| `sinkhorn_iterations` | iterations of the Sinkhorn algorithm |

The module `plan` has what all routers by a plan share, with its ledger.
"""

from dataclasses import dataclass

from moespec.spec.choice_options import LogitOptions
from moespec.spec.options import ExpertChoiceOptions, NoisyLossOptions
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import gating_noise, init_kernel, noisy_logits, noisy_losses, output
from moespec.spec.routers.plan import SinkhornOptions, combine_scores, sinkhorn_plan
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(SinkhornOptions, NoisyLossOptions, ExpertChoiceOptions, LogitOptions):
    """Options of `sinkhorn_expert_choice`."""


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the Sinkhorn plan of the noisy logits, combined with the softmax of the noisy logits."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = sinkhorn_plan(B, options, noisy)
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = B.expert_choice(B.stop_gradient(plan), capacity=options.capacity(train=train), combine_scores=combine)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.4",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, exactly; how often tokens are chosen, nearly: by a balanced plan",
    cost="T D E, and 2 T E for each of the iterations",
    drops="tokens that no expert chooses",
    revision=3,
)
