"""The weights of a token's chosen experts, divided by the sum or another norm of these weights.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| `scores` A (T, E) | gates g |
| `normalize_selected` (T, E) | g1 / (g1 + g2), g2 / (g1 + g2) |

Ambiguity ledger

TC-5: If the weights of a token are normalised, by what are they divided?
    Reading: the weights are divided by their sum.
        By: the paper, Algorithm 1; databricks/megablocks, megablocks/layers/router.py, LearnedRouter.forward
        (moe_normalize_expert_weights=1); huggingface/transformers, src/transformers/models/mixtral/modeling_mixtral.py,
        MixtralTopKRouter.
    Alternative b: the weights are divided by their Euclidean norm (`normalize_norm="euclidean"`).
        By: databricks/megablocks, megablocks/layers/router.py, LearnedRouter.forward (moe_normalize_expert_weights=2).
    Alternative c: the weights are divided by the larger of their sum and 2^-23.
        By: facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating; microsoft/Tutel,
        tutel/impls/fast_dispatch.py, extract_critical; huggingface/transformers,
        src/transformers/models/nllb_moe/modeling_nllb_moe.py, NllbMoeTop2Router.normalize_router_probabilities.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_non_negative, check_option, check_positive, check_same_shape
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, stable_order
from moespec.spec.values import as_array

__all__ = ["normalize_selected", "scaled_gates"]

ALGORITHMS = (
    Algorithm("normalize_selected", "Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1", 1, ("normalize_selected",)),
)

NORMS = ("sum", "euclidean")


def normalize_selected(
    scores: ArrayLike, combine_scores: ArrayLike | None = None, *, choices: int, norm: str = "sum", epsilon: float = 0.0
) -> Array:
    """Divides the combine scores of each token by their sum (or another norm) over the K experts that the token chooses:

        B[t, e] / (sum_e' in top K of A[t] B[t, e'] + epsilon)

    The sum includes choices that are dropped later because an expert is full. `token_choice(normalize=...)` excludes dropped choices.

    Args:
        scores: A, (tokens, experts), the selection scores.
        combine_scores: B, (tokens, experts), positive for the chosen experts, by default `scores`.
        choices: K, from 1 to experts.
        norm: "sum", or "euclidean" for the square root of the sum of squares.
        epsilon: the number that is added to the norm, at least 0. If epsilon is 0, a norm of 0 is an error.

    Returns:
        (tokens, experts), to pass to `token_choice` as `combine_scores`.

    Raises:
        ContractError: the weights of a token's chosen experts sum to 0, and `epsilon` is 0.

    Source: GShard (arXiv 2006.16668), Algorithm 1. `norm`: databricks/megablocks, megablocks/layers/router.py.

    >>> normalize_selected([[0.5, 0.25, 0.25]], choices=2).round(10).tolist()
    [[0.6666666667, 0.3333333333, 0.3333333333]]
    """
    scores = as_array("scores", scores, "tokens experts")
    weights = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", weights, "scores", scores)
    check_choices(choices, scores.shape[1])
    check_option("norm", norm, NORMS)
    chosen = stable_order(scores)[:, :choices]
    epsilon = check_non_negative("epsilon", epsilon)
    return weights / norm_of(np.take_along_axis(weights, chosen, axis=1), norm, epsilon)


def scaled_gates(gates: ArrayLike, *, scale: float) -> Array:
    """Multiplies combine scores by a constant: `scale G[t, e]`.

    Args:
        gates: G, (tokens, experts).
        scale: the constant, greater than 0.

    Returns:
        (tokens, experts), to pass to `token_choice` as `combine_scores`.

    Source: deepseek-ai/DeepSeek-V3, inference/model.py, Gate.

    >>> scaled_gates([[0.75, 0.25]], scale=2.5).tolist()
    [[1.875, 0.625]]
    """
    return as_array("gates", gates, "tokens experts") * check_positive("scale", scale)


def norm_of(weights: Array, norm: str, epsilon: float = 0.0) -> Array:
    """Returns epsilon plus the norm of each row, (tokens, 1). The norm is the sum, or the square root of the sum of squares."""
    totals = (weights if norm == "sum" else weights * weights).sum(axis=1, keepdims=True)
    if epsilon == 0 and (totals.real == 0).any():
        raise ContractError("combine_scores: the scores of a token's chosen experts sum to 0; expected a nonzero sum")
    return (totals if norm == "sum" else np.sqrt(totals)) + epsilon


def divided_by_kept(weights: Array, kept: Array, normalize: str) -> Array:
    """Divides each row of `weights` (tokens, experts) by the norm of the entries that `kept` marks. A row without marks is unchanged."""
    check_option("normalize", normalize, NORMS)
    some = kept.any(axis=1)
    divided = weights.copy()
    divided[some] = weights[some] / norm_of((weights * kept)[some], normalize)
    return divided
