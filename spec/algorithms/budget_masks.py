"""The experts of each token, if tokens have different numbers of experts: by cumulative probability, rank in a group, or cutoffs.

| here | Huang et al. 2024 (arXiv 2403.07652) | SeqTopK (arXiv 2511.06494) | Expert Threshold (arXiv 2603.11535) |
|---|---|---|---|
| `scores` (T, E) | P, probabilities | scores of a sequence | router logits |
| `p`, `choices` | p | K | |
| `cutoffs` (2, E) | | | cutoff_ema, cutoff_ema_updates |

Ambiguity ledger

VB-1: Does a token choose another expert if the scores of its experts sum to exactly p?
    Reading: yes, the sum must exceed p.
        By: ZhenweiAn/Dynamic_MoE, modeling/modeling_moe.py, top_p_sampling_batched_all_sequence.
    Alternative b: no, a sum equal to p is sufficient.
VB-2: Does the pooled choice include all pairs that are tied with the K T-th largest score?
    Reading: no, exactly K T pairs are chosen. Ties go to the lower token index, then to the lower expert index.
    Alternative b: yes, all pairs whose score is at least the K T-th largest score are chosen.
VB-3: Does an expert take a token whose score equals the cutoff?
    Reading: no, the score must exceed the cutoff.
        By: Expert Threshold (arXiv 2603.11535).
    Alternative b: yes, a score equal to the cutoff is sufficient.
        By: MasterGodzilla/Expert-Threshold-Routing, src/models/engines/common.py, ExpertEngineCommon._build_routing_plan.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.strictly_balanced import batchwise_mask
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_choices, check_mask, check_positive, check_size
from moespec.spec.numerics import Array, Shared, stable_order
from moespec.spec.values import as_array, even

__all__ = ["cutoff_mask", "kept_scores", "pooled_mask", "top_p_mask"]

AXES, LEAST = "tokens experts", 2.0**-126
PAPERS = "Huang et al. 2024 (arXiv 2403.07652); Wen et al. 2025 (arXiv 2511.06494); Sun et al. 2026 (arXiv 2603.11535)"
ALGORITHMS = (Algorithm("budget_masks", PAPERS, 1, tuple(__all__)),)


def top_p_mask(scores: ArrayLike, controller: Shared, *, p: float) -> Array:
    """Returns the mask of each token's best experts: as few as needed for a sum above `p + controller[0]`, and at least one.

    Args:
        scores: (tokens, experts), probabilities. Ties go to the lower expert index.
        controller: (2,), from `renewed_controller`: the change of p, and the integral of the error.
        p: greater than 0.

    Returns:
        (tokens, experts) booleans.

    Source: ZhenweiAn/Dynamic_MoE, modeling/modeling_moe.py, top_p_sampling_batched_all_sequence.

    >>> top_p_mask([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0.125, 0.0], p=0.5).astype(int).tolist()
    [[1, 1, 0], [0, 1, 0]]
    """
    scores, controller = as_array("scores", scores, AXES), as_array("controller", controller, "pair")
    check_size("controller", controller, 0, 2, "a change of p and an integral")
    order, mask = stable_order(scores), np.zeros(scores.shape, bool)
    better = np.cumsum(np.take_along_axis(scores.real, order, 1), axis=1)[:, :-1]
    more = better <= check_positive("p", p) + controller[0].real  # whether to add another expert to the better ones
    np.put_along_axis(mask, order, np.pad(more, ((0, 0), (1, 0)), constant_values=True), axis=1)
    return mask


def pooled_mask(scores: ArrayLike, *, choices: int) -> Array:
    """Returns the mask of the K T pairs of a token and an expert with the largest scores of the group.

    Args:
        scores: (tokens, experts). Ties go to the lower token index, then to the lower expert index.
        choices: K, from 1 to experts.

    Returns:
        (tokens, experts) booleans.

    Source: SeqTopK (arXiv 2511.06494).

    >>> pooled_mask([[0.5, 0.125, 0.375], [0.25, 0.25, 0.5]], choices=1).astype(int).tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    scores = as_array("scores", scores, AXES)
    mask = np.zeros(scores.size, bool)
    mask[stable_order(scores.reshape(-1))[: check_choices(choices, scores.shape[1]) * len(scores)]] = True
    return mask.reshape(scores.shape)


def cutoff_mask(scores: ArrayLike, cutoffs: Shared, *, capacity: int = 1, warmup_steps: int = 0) -> Array:
    """Returns the mask of the tokens whose scores exceed the cutoff of an expert or, in the first steps, of the C best tokens.

    Args:
        scores: (tokens, experts).
        cutoffs: (2, experts), from `renewed_cutoffs`: the cutoffs, and the number of steps so far.
        capacity: C, the number of tokens that an expert takes during the warm-up, from 1 to tokens.
        warmup_steps: the number of steps of the warm-up.

    Returns:
        (tokens, experts) booleans.

    Source: Expert Threshold (arXiv 2603.11535).

    >>> cutoff_mask([[0.75, 0.25], [0.5, 0.5]], [[0.25, 0.25], [3.0, 3.0]]).astype(int).tolist()
    [[1, 0], [1, 1]]
    """
    scores, cutoffs = as_array("scores", scores, AXES), as_array("cutoffs", cutoffs, "pair experts")
    check_size("cutoffs", cutoffs, 0, 2, "cutoffs and steps")
    check_size("cutoffs", cutoffs, 1, scores.shape[1], "the experts of scores")
    warm = cutoffs[1].real < check_at_least("warmup_steps", warmup_steps, 0)
    return np.where(warm, batchwise_mask(scores, capacity=capacity), scores.real > cutoffs[0].real)


def kept_scores(scores: ArrayLike, mask: ArrayLike) -> Array:
    """Sets the scores outside the mask to 0. Scores in the mask are at least 2^-126, so that they are above 0 also in float32.

    Args:
        scores: (tokens, experts).
        mask: (tokens, experts) booleans.

    Returns:
        (tokens, experts), for `expert_choice(..., drop_zero=True)`.

    Source: ZhenweiAn/Dynamic_MoE, modeling/modeling_moe.py, top_p_sampling_batched_all_sequence.

    >>> kept_scores([[0.5, 0.25]], [[True, False]]).tolist()
    [[0.5, 0.0]]
    """
    scores, mask = as_array("scores", scores, AXES), even("mask", mask)
    check_mask("mask", mask, scores.shape, "score")
    return np.where(mask, np.where(scores.real > LEAST, scores, LEAST), 0.0)
