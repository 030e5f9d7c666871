"""Expert Choice by the sparsity-constrained plan: the plan selects the tokens, and the softmax weights the outputs.

| here | Routers (arXiv 2401.15969), section 2.5 |
|---|---|
| `kernel` (D, E) | W |
| plan (T, E) | Pi, at most C tokens per expert |
| `transport_steps` | iterations of the solver |

The module `plan` contains the code and the ledger entries that all plan-based routers share.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.algorithms.sparse_transport import sparse_transport_affinity
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import NoisyOptions
from moespec.spec.ranges import Count, Scalar
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output
from moespec.spec.routers.plan import combine_scores
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyOptions):
    """Options of `sparsity_constrained_expert_choice`."""

    experts_choose: ClassVar[bool] = True
    noise_multiplier: Scalar = 0.0
    combine_with: Literal["softmax", "plan"] = "softmax"
    combine_from_clean_logits: bool = False
    transport_objective: Literal["semi_dual", "dual"] = "semi_dual"
    transport_steps: Count = 20
    drop_zero_plan: bool = False
    """leave a slot empty if the plan entry of its token is 0"""


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice based on the sparsity-constrained plan of the softmax. The softmax or the plan provides the combine weights.

    noise, train: see `softmax_token_choice`. With `jitter`, the noise is applied to the tokens instead of the logits.

    The plan carries no gradient. If the plan provides the combine weights, only the auxiliary losses train the kernel. With
    fewer than T / E slots per expert (a capacity factor below 1), the constraints of the plan are infeasible (see
    `sparse_transport_affinity`).
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)
    capacity = options.capacity(train=train)

    # Plan. The plan carries no gradient.
    objective, steps = options.transport_objective, options.transport_steps
    utility = stop_gradient(softmax_affinity(noisy))
    plan = sparse_transport_affinity(utility, objective=objective, steps=steps, capacity=capacity)
    combine_with, from_clean = options.combine_with, options.combine_from_clean_logits
    combine = combine_scores(plan, logits, noisy, combine_with=combine_with, from_clean=from_clean)

    # Slots.
    routing = expert_choice(plan, capacity=capacity, combine_scores=combine, drop_zero=options.drop_zero_plan)

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Liu et al. 2024 (arXiv 2401.15969), section 2.5",
    Options,
    init_kernel,
    route,
    gating_noise,
    revision=6,
    balances="the load of the experts, exactly: each chooses C tokens; the number of experts per token, weakly",
    cost="T D E, plus a selection of C tokens per expert in each step",
    drops="tokens that no expert chooses",
)
