"""What the routers that select by a plan have in common: the plan, and what weights the outputs.

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
RT-4: Are the sparsity-constrained routers noisy in training?
    Reading: no, unless `noise_multiplier` is set, which is 0 by default.
        By: the paper, eq. (9);
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter and KSparseProjectionTransportTopExpertsPerItemRouter.
    Alternative b: yes, with the standard deviation 1 / E by default, as the other routers of the study.

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
from typing import Any, Literal

from moespec.spec.options import NoiseOptions, RouterOptions
from moespec.spec.ranges import Count, Scalar
from moespec.spec.routers.blocks import Array, Blocks

__all__ = ["PlanOptions", "SinkhornOptions", "SparsePlanOptions", "combine_scores", "sinkhorn_plan", "sparse_plan"]


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


@dataclass(frozen=True, kw_only=True)
class SparsePlanOptions(PlanOptions, NoiseOptions):
    """Options of routers that select by a sparsity-constrained plan."""

    noise_multiplier: Scalar = 0.0
    transport_objective: Literal["semi_dual", "dual"] = "semi_dual"
    """what the solver of the sparsity-constrained plan maximises"""
    transport_steps: Count = 20
    """solver steps of the sparsity-constrained plan"""


def sinkhorn_plan(B: Blocks, options: SinkhornOptions, noisy: Array) -> Array:
    """The plan of the noisy logits.

    A plan that only selects is cut off from the gradient before its iterations, so that none of them is recorded.
    """
    logits = noisy if options.combine_with == "plan" else B.stop_gradient(noisy)
    return B.sinkhorn_affinity(logits, iterations=options.sinkhorn_iterations)


def sparse_plan(B: Blocks, options: SparsePlanOptions, scores: Array, **constraint: Any) -> Array:
    """The plan of the scores, which carries no gradient; `constraint` says what is sparse, and how much."""
    return B.sparse_transport_affinity(
        B.stop_gradient(scores),
        objective=options.transport_objective,
        steps=options.transport_steps,
        **constraint,
    )


def combine_scores(B: Blocks, options: PlanOptions, clean: Array, noisy: Array, plan: Array) -> Array:
    """The scores that weight the experts' outputs."""
    if options.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if options.combine_from_clean_logits else noisy)
