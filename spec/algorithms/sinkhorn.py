"""The Sinkhorn affinity: an entropy-regularised transport plan that spreads the tokens evenly over the experts.

    minimise  -<P, L> + sum_te P[t, e] log P[t, e]   over P > 0 with row sums 1 and column sums T / E

| here | Routers (arXiv 2401.15969), eq. (8) |
|---|---|
| `logits` L (T, E) | XW |
| plan P (T, E) | Pi |
| row sums 1 | a = 1, one unit of mass per token |
| column sums T / E | b = n_tokens / n_experts |
| `f` (T,), `g` (E,) | the dual potentials of the rows and of the columns |

Ambiguity ledger

SK-1: Which marginal is updated first?
    Reading: the column marginal comes first, starting from f = 0. Rows sum to 1 (up to rounding) after every iteration.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter (by the solver of ott-jax).
    Alternative b: the row marginal comes first. After a finite number of iterations, the two orders give different plans.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, sinkhorn.
SK-2: How many iterations are run?
    Reading: 20 iterations, without early stopping.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ot_routing.py,
        BaseOTNoisyTopExpertsPerItemRouter (maxiter, which kl_projection_routing.py also uses as the minimum).
    Alternative b: iterations are run until the column error is below a tolerance (`tolerance`).
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, sinkhorn.
SK-3: Which matrix is the utility of the transport problem, and how much mass is transported?
    Reading: the utility is the raw logits, with a mass of 1 per token.
        By: the paper, eq. (8);
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter._get_kl_projection_algorithm.
    Alternative b: the utility is the softmax of the logits.
    Alternative c: the utility is the raw logits, with a total mass of 1 and marginals 1 / T and 1 / E.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, sinkhorn.
SK-4: How is the plan differentiated if it carries a gradient?
    Reading: the plan is differentiated through the unrolled iterations.
    Alternative b: the plan is differentiated implicitly at the optimum.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/kl_projection_routing.py,
        KLProjectionNoisyTopExpertsPerItemRouter (use_implicit_differentiation).

V-MoE's code iterates on `exp(L)` (`lse_mode=False`) instead of in the log domain. Unless a number overflows, both methods give
the same plan. If all tokens have equal logits, the plan is uniform, even if experts have different logits. Rounding errors then determine
the largest entry of each row, so a router that selects experts by the plan may send all tokens to the same expert.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_positive
from moespec.spec.numerics import Array, logsumexp
from moespec.spec.values import as_array

__all__ = ["sinkhorn_affinity"]

ALGORITHMS = (Algorithm("sinkhorn", "Liu et al. 2024 (arXiv 2401.15969), eq. (8)", 1, ("sinkhorn_affinity",)),)


def sinkhorn_affinity(logits: ArrayLike, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """Computes the plan `P[t, e] = exp(L[t, e] + f[t] + g[e])` by up to `iterations` updates, starting at `f = 0`:

        g[e] = log(T / E) - logsumexp_t(L[t, e] + f[t])
        f[t] = -logsumexp_e(L[t, e] + g[e])

    The updates use logarithms, so large logits do not overflow. The plan is differentiable through the iterations.

    Args:
        logits: L, (tokens, experts).
        iterations: the maximum number of updates, at least 1.
        tolerance: the updates stop after the first update with `max_e |sum_t P[t, e] - T / E| <= tolerance`; greater than 0,
            or None to compute all updates.

    Returns:
        (tokens, experts). Entries are at least 0, and small entries underflow to 0. Rows sum to 1 up to rounding.
        Columns sum to approximately T / E.

    Source: Routers, eq. (8); Cuturi 2013 (arXiv 1306.0895).

    >>> from moespec.spec.examples import LOGITS
    >>> for row in sinkhorn_affinity(LOGITS).round(10).tolist():
    ...     print(row)
    [0.4398863424, 0.3442350899, 0.2158785678]
    [0.5088014385, 0.2414992296, 0.2496993319]
    [0.1525433837, 0.4166545589, 0.4308020574]
    [0.1288454924, 0.1008286355, 0.7703258721]
    [0.6263046202, 0.0663302008, 0.3073651791]
    [0.1436187229, 0.8304522854, 0.0259289917]
    >>> sinkhorn_affinity(LOGITS, iterations=1)[0].round(10).tolist()
    [0.3841819336, 0.3810954748, 0.2347225916]
    """
    logits = as_array("logits", logits, "tokens experts")
    check_at_least("iterations", iterations, 1)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    tokens, experts = logits.shape
    column_mass = tokens / experts
    f = np.zeros(tokens)
    for _ in range(iterations):
        g = np.log(column_mass) - logsumexp(logits + f[:, None], axis=0)
        f = -logsumexp(logits + g[None, :], axis=1)
        plan = np.exp(logits + f[:, None] + g[None, :])
        if tolerance is not None:
            error = plan.real.sum(axis=0) - column_mass
            if error.real.max() <= tolerance and error.real.min() >= -tolerance:
                break
    return plan
