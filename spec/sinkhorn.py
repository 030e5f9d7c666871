"""The Sinkhorn affinity: an entropy-regularised optimal transport plan between tokens and experts.

    minimise  -<P, L> + sum_te P[t, e] log P[t, e]   over P > 0 with row sums 1 and column sums T / E

Ambiguity ledger

SK-1: Which marginal is updated first?
    Reading: columns, then rows, so that rows sum to 1 exactly after every iteration.
    Alternatives: rows, then columns, which is a different plan after finitely many iterations.
SK-2: How many iterations?
    Reading: 20, without an early stop.
    Alternatives: until the column error is below a tolerance (`tolerance`; Megatron).
SK-3: What is transported, and how much?
    Reading: raw logits; mass 1 for each token.
    Alternatives: exponentials or softmax of the logits; total mass 1 (Megatron).
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_at_least, check_positive
from moespec.spec.numerics import Array, logsumexp

__all__ = ["sinkhorn_affinity"]


def sinkhorn_affinity(logits: ArrayLike, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """The plan after `iterations` updates in the log domain, starting from `f = 0`; each updates

        g[e] = log(T / E) - logsumexp_t(L[t, e] + f[t])
        f[t] =            - logsumexp_e(L[t, e] + g[e])

    and `P[t, e] = exp(L[t, e] + f[t] + g[e])`. Differentiable through the iterations.

    Args:
        logits: (tokens, experts).
        iterations: at least 1.
        tolerance: stop after the iteration with `max_e |sum_t P[t, e] - T / E| <= tolerance`; None never stops early.

    Returns:
        (tokens, experts); rows sum to 1, columns approximately to T / E.

    Source: Routers, eq. (8); Cuturi 2013. Section 6.

    >>> from moespec.spec.examples import LOGITS
    >>> sinkhorn_affinity(LOGITS)[0].round(10).tolist()
    [0.4398863424, 0.3442350899, 0.2158785678]
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
        error = (plan.sum(axis=0) - column_mass).real
        if tolerance is not None and -tolerance <= error.min() and error.max() <= tolerance:
            break
    return plan
