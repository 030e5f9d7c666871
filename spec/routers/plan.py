"""What the Sinkhorn routers of the study have in common: the plan that selects, and what the outputs are combined with."""

from dataclasses import dataclass
from typing import Literal

from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.blocks import Array, Blocks

__all__ = ["PlanOptions", "combine_scores", "sinkhorn_plan"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RouterOptions):
    """Options of routers that select by a Sinkhorn plan."""

    sinkhorn_iterations: Count = 20
    """updates of the Sinkhorn plan"""
    combine_with: Literal["softmax", "plan"] = "softmax"
    """what weights the experts' outputs; plan: the ablation, differentiated through the iterations"""
    combine_from_clean_logits: bool = False
    """leave the noise out of the combine weights"""


def sinkhorn_plan(B: Blocks, options: PlanOptions, noisy: Array) -> Array:
    """The plan of the noisy logits.

    A plan that only selects is cut off from the gradient before its iterations, so that none of them is recorded.
    """
    logits = noisy if options.combine_with == "plan" else B.stop_gradient(noisy)
    return B.sinkhorn_affinity(logits, iterations=options.sinkhorn_iterations)


def combine_scores(B: Blocks, options: PlanOptions, clean: Array, noisy: Array, plan: Array) -> Array:
    """What the experts' outputs are combined with."""
    if options.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if options.combine_from_clean_logits else noisy)
