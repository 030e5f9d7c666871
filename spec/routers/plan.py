"""Which scores weight the outputs of experts where a plan selects.

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

from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.routing import Array

__all__ = ["combine_scores"]


def combine_scores(plan: Array, logits: Array, noisy: Array, *, combine_with: str, from_clean: bool) -> Array:
    """The softmax of the noisy logits or, `from_clean`, of those without noise; with `combine_with="plan"` the plan itself."""
    if combine_with == "plan":
        return plan
    return softmax_affinity(logits if from_clean else noisy)
