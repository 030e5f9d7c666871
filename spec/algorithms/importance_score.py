"""Importance-score routing: removes the least important tokens. The other tokens choose experts in order of importance.

The remaining tokens are routed by Batch Priority Routing. In its efficient mode, the token-mixing layer of Sparse-MLP
routes channels in this way. A removed token has combine weights of 0, so only the residual connection carries the token.

| here | Sparse-MLP (arXiv 2109.02008), section 2.2 |
|---|---|
| `scores` (T, E) | gates G(x) of the channels, noisy in training |
| importance of a token, its highest score | s_i = max_j G(x_i)_j, eq. (3) |
| `drop` | 10 %, the fraction of removed channels |
| survivors | the remaining channels, sorted by importance score |

With `drop=0`, the routing is Batch Priority Routing. Removed tokens do not affect the other tokens. No public code is known.

Ambiguity ledger

IS-1: Over which axis is the maximum of the importance score taken?
    Reading: the maximum is taken over the experts.
        By: the paper, eq. (3).
    Alternative b: the maximum is taken over the channels (text before the equation). All scores would then be equal.
IS-2: How many tokens are removed?
    Reading: floor(drop * T) tokens, evaluated in double precision.
    Alternative b: drop * T tokens, rounded up or to the nearest integer.
IS-3: Which token is removed first if several tokens are equally important?
    Reading: the token with the higher index is removed first.
    Alternative b: the token that an unstable sort happens to put last is removed first.
IS-4: From which number of tokens is the capacity computed?
    Reading: the capacity is computed from the number of remaining tokens, so removing tokens saves computation.
    Alternative b: the capacity is computed from the number of all tokens.
IS-6: Are tokens also removed at evaluation?
    Reading: yes, tokens are removed at evaluation as in training.
    Alternative b: no, tokens are removed only in training. The paper does not answer this question.
IS-7: From which tokens are the auxiliary losses computed?
    Reading: the losses cover all tokens, so that gradients can make removed tokens important again.
    Alternative b: the losses cover only the remaining tokens.

Often done differently

IS-5: Do removed tokens occupy slots before they are removed?
    Reading: no, tokens are removed before any token chooses an expert.
        By: the paper, section 2.2.
    Alternative b: yes, removed tokens are assigned like all other tokens. Their combine weights are then set to 0.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_non_negative, check_same_shape
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["importance_score_choice", "importance_score_order"]


def surviving_tokens(tokens: int, drop: Any) -> int:
    """Returns the number of tokens that remain after the fraction `drop` is removed: `T - floor(drop * T)`.

    Raises ConfigError unless `0 <= drop < 1`.

    >>> surviving_tokens(50, 0.1), surviving_tokens(9, 0.1)
    (45, 9)
    """
    drop = check_non_negative("drop", drop)
    if drop >= 1:
        raise ConfigError(f"drop: expected a fraction below 1, got {drop}")
    return tokens - math.floor(drop * tokens)


def importance_score_order(scores: ArrayLike, *, drop: float = 0.1) -> NDArray[np.intp]:
    """Sorts the remaining tokens by descending importance `max_e scores[t, e]`, with ties broken by lower index.

    Args:
        scores: (tokens, experts), the selection scores (noisy in training).
        drop: fraction of the tokens to remove, at least 0 and below 1. The `floor(drop * tokens)` least important tokens are removed.

    Returns:
        (survivors,) integers: the token indices in the order of assignment.

    Source: Sparse-MLP, section 2.2, eq. (3).

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> importance_score_order(softmax_affinity(LOGITS), drop=0.4).tolist()  # floor(0.4 * 6) = 2 are removed
    [4, 1, 5, 0]
    """
    order = batch_priority(scores)
    return order[: surviving_tokens(len(order), drop)]


def importance_score_choice(
    scores: ArrayLike, *, choices: int, capacity: int, drop: float = 0.1, combine_scores: ArrayLike | None = None
) -> Routing:
    """Routes the remaining tokens by Token Choice, in order of importance.

    The rows of removed tokens are 0 in `dispatch` and `combine`. Gradients flow only through the `combine_scores` of kept
    choices. With `drop=0`, the result is the same as from `token_choice` with `order=batch_priority(scores)`.

    Args:
        scores: (tokens, experts), the scores that rank the tokens and select experts.
        choices: K, the experts per token, from 1 to experts.
        capacity: slots C per expert, at least 1; the router computes C by `expert_capacity` from the number of remaining tokens.
        drop: fraction of the tokens to remove; see `importance_score_order`.
        combine_scores: (tokens, experts), the combine weights, by default `scores`.

    Returns:
        Routing of (tokens, experts, capacity).

    Source: Sparse-MLP, section 2.2.

    >>> from moespec.spec import slot_tokens, softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> routing = importance_score_choice(softmax_affinity(LOGITS), choices=1, capacity=2, drop=0.2)
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)  # token 2 is removed, token 0 finds no slot
    ([[4, 1], [5, 6], [3, 6]], 2.8478680303)
    >>> dispatch, _ = importance_score_choice(np.eye(50), choices=1, capacity=50)
    >>> int(dispatch.sum())
    45
    """
    # Scores.
    scores = as_array("scores", scores, "tokens experts")
    weights = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", weights, "scores", scores)

    # Selection, slots: the remaining tokens form a separate, sorted batch.
    left = importance_score_order(scores, drop=drop)
    among_them = token_choice(scores[left], choices=choices, capacity=capacity)

    # Dispatch.
    dispatch = np.zeros((*scores.shape, capacity))
    dispatch[left] = among_them.dispatch

    # Combine.
    return Routing(dispatch, weights[:, :, None] * dispatch)
