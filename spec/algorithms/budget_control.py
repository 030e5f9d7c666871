"""Controllers of the number of experts per token: a moving average of cutoffs, and a proportional-integral controller of top-p's p.

| here | Expert Threshold (arXiv 2603.11535) | Expert Race (arXiv 2503.16057) | DTop-p (arXiv 2512.13996) |
|---|---|---|---|
| `cutoffs` (2, E) | cutoff_ema, cutoff_ema_updates | tau | |
| `controller` (2,) | | | p minus the initial p, integral of the error |
| `choices` | | k | the target T |

Ambiguity ledger

VB-4: Is the moving average of the cutoffs corrected for its start at 0?
    Reading: yes, the weights of all steps so far sum to 1, so the first step sets the cutoffs.
        By: MasterGodzilla/Expert-Threshold-Routing, src/models/engines/common.py, ExpertEngineCommon._effective_cutoff.
    Alternative b: no, the cutoffs start at 0, and each step moves them by 1 minus the decay.
VB-5: To what does the controller of p add its two terms?
    Reading: the two terms are added to the initial p.
        By: DTop-p (arXiv 2512.13996).
    Alternative b: the two terms are added to the current p.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_choices, check_mask, check_non_negative, check_rank, check_size
from moespec.spec.numerics import Array, Shared, stable_order, stop_gradient
from moespec.spec.routing import Summed
from moespec.spec.values import as_array, even

__all__ = ["budget_excess", "pooled_cutoff", "renewed_controller", "renewed_cutoffs"]

PAPERS = "Jin et al. 2025 (arXiv 2512.13996); Yuan et al. 2025 (arXiv 2503.16057); Sun et al. 2026 (arXiv 2603.11535)"
ALGORITHMS = (Algorithm("budget_control", PAPERS, 1, tuple(__all__)),)


def budget_excess(mask: ArrayLike, *, choices: int) -> Summed:
    """Returns the number of chosen experts minus the target K T, and the number of tokens T.

    Args:
        mask: (tokens, experts) booleans.
        choices: K, from 1 to experts.

    Returns:
        (2,), summed if there are several groups.

    Source: DTop-p (arXiv 2512.13996).

    >>> budget_excess([[True, True], [True, True]], choices=1).tolist()
    [2.0, 2.0]
    """
    mask = even("mask", mask)
    check_rank("mask", mask, "tokens experts")
    check_mask("mask", mask, mask.shape, "token and expert")
    tokens, experts = mask.shape
    return np.array([np.sum(mask) - check_choices(choices, experts) * tokens, tokens], np.float64)


def pooled_cutoff(scores: ArrayLike, *, choices: int) -> Summed:
    """Returns the K T-th largest score of the group, once per expert, and a count of 1 for the group.

    Args:
        scores: (tokens, experts).
        choices: K, from 1 to experts.

    Returns:
        (2, experts): scores and counts, summed if there are several groups.

    Source: Expert Race (arXiv 2503.16057).

    >>> pooled_cutoff([[0.5, 0.25], [0.75, 0.5]], choices=1).tolist()
    [[0.5, 0.5], [1.0, 1.0]]
    """
    scores = stop_gradient(as_array("scores", scores, "tokens experts"))
    flat, (tokens, experts) = scores.reshape(-1), scores.shape
    last = stable_order(flat)[check_choices(choices, experts) * tokens - 1]
    return np.stack([np.full(experts, flat[last]), np.ones(experts)])


def renewed_cutoffs(cutoffs: Shared, reached: Shared, *, decay: float) -> Array:
    """Returns the moving average of the cutoffs after step n, whose weights sum to 1, and n:

        c[e] + (1 - decay) / (1 - decay^n) (reached[0, e] / reached[1, e] - c[e])

    Args:
        cutoffs: (2, experts): the cutoffs c and the number of steps n - 1, initially 0.
        reached: (2, experts), from `capacity_thresholds` or `pooled_cutoff`, summed over all groups of the step.
        decay: the weight of the old cutoffs, at least 0. For 1, the result is the mean over all steps.

    Returns:
        (2, experts).

    Source: MasterGodzilla/Expert-Threshold-Routing, src/models/engines/common.py, ExpertEngineCommon.finalize_cutoff_accumulation.

    >>> renewed_cutoffs([[0.5], [1.0]], [[4.0], [2.0]], decay=0.5).round(6).tolist()
    [[1.5], [2.0]]
    """
    cutoffs, reached = as_array("cutoffs", cutoffs, "pair experts"), as_array("reached", reached, "pair experts")
    check_size("cutoffs", cutoffs, 0, 2, "cutoffs and steps")
    check_size("reached", reached, 0, 2, "sums and their number")
    check_size("reached", reached, 1, cutoffs.shape[1], "the experts of cutoffs")
    decay, steps = check_non_negative("decay", decay), cutoffs[1] + 1
    rate = 1 / steps if decay == 1 else (1 - decay) / (1 - decay**steps)
    return np.stack([cutoffs[0] + rate * (reached[0] / reached[1] - cutoffs[0]), steps])


def renewed_controller(controller: Shared, budget: Shared, *, experts: int, gain: float, integral_gain: float) -> Array:
    """Returns the change of p for the next step, and the integral of the error, which is positive if tokens have too few experts:

        error = -budget[0] / (E budget[1]),    integral = controller[1] + error,    change = gain error + integral_gain integral

    Args:
        controller: (2,), the change of p and the integral, initially 0.
        budget: (2,), from `budget_excess`, summed over all groups of the step.
        experts: E, at least 1.
        gain: K_p, at least 0.
        integral_gain: K_i, at least 0.

    Returns:
        (2,).

    Source: DTop-p (arXiv 2512.13996).

    >>> renewed_controller([0.0, 0.5], [-4.0, 2.0], experts=4, gain=0.5, integral_gain=0.25).tolist()
    [0.5, 1.0]
    """
    controller, budget = as_array("controller", controller, "pair"), as_array("budget", budget, "pair")
    check_size("controller", controller, 0, 2, "a change of p and an integral")
    check_size("budget", budget, 0, 2, "an excess and a number of tokens")
    error = -budget[0] / (check_at_least("experts", experts, 1) * budget[1])
    integral = controller[1] + error
    gain, integral_gain = check_non_negative("gain", gain), check_non_negative("integral_gain", integral_gain)
    return np.stack([gain * error + integral_gain * integral, integral])
