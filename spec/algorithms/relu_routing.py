"""ReLU routing: sparse gates from a ReLU, and a penalty that controls how many gates are positive.

| here | ReMoE (arXiv 2412.14711), sections 3.2-3.4 |
|---|---|
| `gates` (T, E) | R(x), ReLU(x W) |
| `choices` | k, the mean number of experts per token |
| `relu_loss` | lambda L_reg,lb of one layer |
| `penalty` | lambda |
| `multiplier` | alpha |

Ambiguity ledger

RE-1: How does the penalty change if exactly K T gates are above 0?
    Reading: the penalty does not change.
        By: the paper, eq. (7).
    Alternative b: the penalty is divided by the multiplier.
        By: thu-ml/ReMoE, megatron/training/training.py, train.

Often done differently

RE-2: How does the loss weight the gates of each expert?
    Reading: each gate is weighted by the token count of its expert divided by the target K T / E, so the loss balances the load.
        By: the paper, eq. (10); thu-ml/ReMoE, megatron/core/transformer/moe/router.py, ReLURouter.apply_l1_reg.
    Alternative b: the gates of all experts have equal weights, as in the L1 norm.
        By: the paper, eq. (9) (replaced by eq. (10)).
RE-3: Does the token count of an expert carry a gradient?
    Reading: no, the token count carries no gradient.
        By: the paper, section 3.4; thu-ml/ReMoE, megatron/core/transformer/moe/router.py, ReLURouter.apply_l1_reg.
    Alternative b: yes, the gradient flows through a differentiable approximation of the count.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_positive
from moespec.spec.numerics import Array, Shared
from moespec.spec.routing import Summed
from moespec.spec.values import as_array, as_scalar

__all__ = ["excess_gates", "relu_affinity", "relu_loss", "renewed_penalty"]

ALGORITHMS = (
    Algorithm(
        "relu_routing",
        "Wang et al. 2024 (arXiv 2412.14711)",
        2,
        ("relu_affinity", "relu_loss", "excess_gates", "renewed_penalty"),
    ),
)


def relu_affinity(logits: ArrayLike) -> Array:
    """Computes the ReLU of each logit, `max(L[t, e], 0)`. The derivative of the ReLU at 0 is 0.

    Args:
        logits: L, (tokens, experts).

    Returns:
        (tokens, experts), at least 0.

    Source: ReMoE, section 3.2.

    >>> relu_affinity([[0.5, -0.25]]).tolist()
    [[0.5, 0.0]]
    """
    logits = as_array("logits", logits, "tokens experts")
    return np.where(logits.real > 0, logits, 0.0)


def relu_loss(gates: ArrayLike, penalty: Shared, *, choices: int) -> Array:
    """Computes the penalty times a weighted L1 norm of the gates. The weight f[e] of an expert carries no gradient:

        loss = lambda / T sum_te f[e] R[t, e],    f[e] = E / (K T) #{t : R[t, e] > 0}

    Args:
        gates: R, (tokens, experts), at least 0.
        penalty: lambda, a scalar.
        choices: K, from 1 to experts.

    Returns:
        A scalar, at least 0.

    Source: ReMoE, eqs. (6), (10) and (11).

    >>> float(relu_loss([[0.5, 0.0], [0.25, 0.25]], 1.0, choices=1))
    0.875
    """
    gates, penalty = as_array("gates", gates, "tokens experts"), as_scalar("penalty", penalty)
    tokens, experts = gates.shape
    active = np.sum(gates.real > 0, axis=0) * (experts / (check_choices(choices, experts) * tokens))
    return penalty * np.sum(active * gates.mean(axis=0))


def excess_gates(gates: ArrayLike, *, choices: int) -> Summed:
    """Returns the number of positive gates minus the target K T: `#{(t, e) : R[t, e] > 0} - K T`.

    The result is positive if the sparsity is below the target 1 - K / E. The caller sums results over groups, micro-batches and devices.

    Args:
        gates: R, (tokens, experts).
        choices: K, from 1 to experts.

    Returns:
        A scalar integer, stored as a float. A backend returns the sum over its groups.

    Source: ReMoE, eqs. (7) and (8).

    >>> float(excess_gates([[0.5, 0.0], [0.25, 0.25]], choices=1))
    1.0
    """
    gates = as_array("gates", gates, "tokens experts")
    tokens, experts = gates.shape
    return np.asarray(np.sum(gates.real > 0) - check_choices(choices, experts) * tokens, np.float64)


def renewed_penalty(penalty: Shared, excess: Shared, *, multiplier: float = 1.2) -> Array:
    """Returns the penalty after a step, `lambda alpha^sign(excess)`. Too many positive gates raise the penalty, and too few lower it.

    Args:
        penalty: lambda, a scalar.
        excess: a scalar, from `excess_gates`.
        multiplier: alpha, greater than 0.

    Returns:
        A scalar.

    Source: ReMoE, eq. (7).

    >>> [float(renewed_penalty(0.5, excess, multiplier=2.0)) for excess in (3.0, 0.0, -1.0)]
    [1.0, 0.5, 0.25]
    """
    penalty, excess = as_scalar("penalty", penalty), as_scalar("excess", excess)
    factor = check_positive("multiplier", multiplier)
    return penalty * np.where(excess.real > 0, factor, np.where(excess.real < 0, 1 / factor, 1.0))
