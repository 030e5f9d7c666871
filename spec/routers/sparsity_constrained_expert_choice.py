"""Expert Choice by the sparsity-constrained plan: experts choose by the sparse plan of the softmax, which then combines.

| here | Routers (arXiv 2401.15969), section 2.5 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi, of at most C tokens for each expert |
| `transport_steps` | iterations of the solver |

The module `plan` has what all routers by a plan share, with its ledger.
"""

from dataclasses import dataclass

from moespec.spec.choice_options import LogitOptions
from moespec.spec.options import ExpertChoiceOptions, NoisyLossOptions
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import gating_noise, init_kernel, noisy_logits, noisy_losses, output
from moespec.spec.routers.plan import SparsePlanOptions, combine_scores, sparse_plan
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(SparsePlanOptions, NoisyLossOptions, ExpertChoiceOptions, LogitOptions):
    """Options of `sparsity_constrained_expert_choice`."""

    drop_zero_plan: bool = False
    """leave slots empty whose token has plan 0"""


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the sparsity-constrained plan of the softmax, combined with the softmax or with the plan.

    The plan carries no gradient: where it weights the outputs, only the losses of the router train the kernel.
    With fewer than T / E slots for an expert (a capacity factor below 1) the constraints of the plan cannot be met; see
    `sparse_transport_affinity`.
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores, capacity = B.softmax_affinity(noisy), options.capacity(train=train)
    plan = sparse_plan(B, options, scores, capacity=capacity)
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = B.expert_choice(plan, capacity=capacity, combine_scores=combine, drop_zero=options.drop_zero_plan)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.5",
    Options,
    init_kernel,
    route,
    gating_noise,
    revision=5,
    balances="the load of the experts, exactly: each chooses C tokens; how many experts a token gets, a little",
    cost="T D E, and a choice of C tokens for each expert in each of the steps",
    drops="tokens that no expert chooses",
)
