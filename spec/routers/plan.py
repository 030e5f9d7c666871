"""The combine scores of routers that select by a transport plan.

| here | Routers (arXiv 2401.15969), sections 2.2, 2.4 and 2.5 |
|---|---|
| plan (T, E) | Pi |
| combine scores (T, E) | A, the softmax affinity |

Ambiguity ledger

RT-1: Which logits does the combine softmax use if the logits are noisy?
    Reading: the softmax uses the noisy logits, from which the plan is also computed.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopItemsPerExpertRouter.
    Alternative b: the softmax uses the clean logits (`combine_from_clean_logits`).
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
SK-5: Do the Sinkhorn routers add noise to the logits in training?
    Reading: yes, noise with standard deviation `noise_multiplier / E` is added to the logits of the plan.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
    Alternative b: no, the logits have no noise (`noise_multiplier=0`).
        By: the paper, eq. (8).
SK-6: Which choices does the load loss of a Sinkhorn router count?
    Reading: the loss counts the K largest logits of a token, although the plan selects the experts.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter.
    Alternative b: the loss counts the K largest plan entries of a token.
RT-4: Do the sparsity-constrained routers add noise to the logits in training?
    Reading: no, unless `noise_multiplier` is set (default: 0).
        By: the paper, eq. (9);
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter and KSparseProjectionTransportTopExpertsPerItemRouter.
    Alternative b: yes, with a standard deviation of 1 / E by default, like the other routers of the paper.

Often done differently

RT-2: With which weights do plan-based routers combine the outputs?
    Reading: with the softmax. The plan only selects experts or tokens and carries no gradient.
        By: the paper, sections 2.2 and 3.4;
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ot_routing.py, _replace_combine_weights.
    Alternative b: with the plan (`combine_with="plan"`). A Sinkhorn plan is then differentiated through its iterations.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ot_routing.py,
        BaseOTNoisyTopExpertsPerItemRouter (use_softmax_combine_weights=False).
"""

from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.routing import Array

__all__ = ["combine_scores"]


def combine_scores(plan: Array, logits: Array, noisy: Array, *, combine_with: str, from_clean: bool) -> Array:
    """Returns the plan if `combine_with` is "plan", else the softmax of the noisy logits or, with `from_clean`, of the clean logits."""
    if combine_with == "plan":
        return plan
    return softmax_affinity(logits if from_clean else noisy)
