"""A soft cap on router logits: a hyperbolic tangent keeps the logits between -cap and cap.

| here | Gemma 2 (arXiv 2408.00118), section 2 |
|---|---|
| `logits` L (T, E) | logits |
| `cap` c | soft_cap |

Gemma 2 caps the logits of attention and of the last layer. praxis caps the logits of routers (gating_logit_cap).

Ambiguity ledger

LC-1: Are the logits of a router capped?
    Reading: no, the logits are not capped.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopExpertsPerItemRouter._compute_gates_softmax_and_metrics;
        tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits; google/praxis, praxis/gshard_utils.py,
        top2_gating_on_logits (gating_logit_cap=0.0, the default).
    Alternative b: yes, by a hyperbolic tangent (`logit_cap`).
        By: google/praxis, praxis/gshard_utils.py, top2_gating_on_logits and topk_gating_on_logits
        (gating_logit_cap above 0).
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_positive
from moespec.spec.numerics import Array
from moespec.spec.values import as_array

__all__ = ["cap_logits"]

ALGORITHMS = (Algorithm("logit_cap", "Gemma Team 2024 (arXiv 2408.00118), section 2", 2, ("cap_logits",)),)


def cap_logits(logits: ArrayLike, *, cap: float) -> Array:
    """Computes `c tanh(L / c)`, which hardly changes small logits and keeps all logits between -c and c.

    Args:
        logits: L, (tokens, experts).
        cap: c, greater than 0.

    Returns:
        (tokens, experts).

    Source: Gemma 2, section 2; google/praxis, praxis/gshard_utils.py, top2_gating_on_logits (gating_logit_cap).

    >>> cap_logits([[0.5, 100.0]], cap=4.0).round(6).tolist()
    [[0.497412, 4.0]]
    """
    logits = as_array("logits", logits, "tokens experts")
    cap = check_positive("cap", cap)
    return cap * np.tanh(logits / cap)
