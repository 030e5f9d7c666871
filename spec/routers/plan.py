"""What the routers of the study that select by a plan have in common: the plan, and what weights the outputs.

| here | Routers (arXiv 2401.15969), sections 2.2, 2.4 and 2.5 |
|---|---|
| plan (T, E) | Pi |
| combine scores (T, E) | A, the softmax affinity |

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
from typing import Literal

from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.blocks import Array, Blocks

__all__ = ["PlanOptions", "SinkhornOptions", "combine_scores", "sinkhorn_plan"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RouterOptions):
    """Options of routers that select by a plan."""

    combine_with: Literal["softmax", "plan"] = "softmax"
    """what weights the experts' outputs; plan: the ablation, with a gradient if it is a Sinkhorn plan"""
    combine_from_clean_logits: bool = False
    """leave the noise out of the combine weights"""


@dataclass(frozen=True, kw_only=True)
class SinkhornOptions(PlanOptions):
    """Options of routers that select by a Sinkhorn plan."""

    sinkhorn_iterations: Count = 20
    """updates of the Sinkhorn plan"""


def sinkhorn_plan(B: Blocks, options: SinkhornOptions, noisy: Array) -> Array:
    """The plan of the noisy logits.

    A plan that only selects is cut off from the gradient before its iterations, so that none of them is recorded.
    """
    logits = noisy if options.combine_with == "plan" else B.stop_gradient(noisy)
    return B.sinkhorn_affinity(logits, iterations=options.sinkhorn_iterations)


def combine_scores(B: Blocks, options: PlanOptions, clean: Array, noisy: Array, plan: Array) -> Array:
    """The scores that weight the experts' outputs."""
    if options.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if options.combine_from_clean_logits else noisy)
