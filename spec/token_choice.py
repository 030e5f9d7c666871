"""Token Choice (Algorithm 1): each token chooses its K best experts, which serve them in turn while they have room.

Ambiguity ledger

TC-1: Which expert wins among equal scores?
    Reading: the lower index.
    Alternatives: the higher index; whatever an unstable sort returns.
TC-2: In which order are choices served?
    Reading: the first choice of every token before the second of any.
    Alternatives: all choices of a token before the next token.
TC-3: What happens to a choice that finds its expert full?
    Reading: it is dropped; the combine weights of the others stay as they are.
    Alternatives: the next-best expert is tried; the remaining weights are renormalised.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, as_order, check_capacity, check_choices, check_same_shape
from moespec.spec.numerics import stable_order
from moespec.spec.routing import Routing

__all__ = ["token_choice"]


def token_choice(
    scores: ArrayLike,
    *,
    choices: int,
    capacity: int,
    combine_scores: ArrayLike | None = None,
    order: ArrayLike | None = None,
) -> Routing:
    """Token Choice allocation.

    Args:
        scores: (tokens, experts), by which tokens choose.
        choices: experts K that a token chooses, `1 <= K <= experts`.
        capacity: slots C per expert, at least 1.
        combine_scores: (tokens, experts), the weights of the chosen; `scores` if None.
        order: (tokens,) integers, the order in which tokens are served; by index if None.

    Returns:
        Routing with `dispatch` in {0, 1} and `combine = combine_scores * dispatch`, each (tokens, experts, capacity).

    Raises:
        ConfigError, ShapeError, DtypeError, ContractError.

    Source: Routers, Algorithm 1. Section 3.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> from moespec.spec.routing import slot_tokens
    >>> routing = token_choice(softmax_affinity(LOGITS), choices=1, capacity=2)
    >>> slot_tokens(routing).tolist()  # 6 is an empty slot
    [[0, 1], [2, 5], [3, 6]]
    >>> round(float(routing.combine.sum()), 10)
    3.0885432032
    """
    # Scores.
    scores = as_array("scores", scores, "tokens experts")
    combine_scores = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    tokens, experts = scores.shape
    choices = check_choices(choices, experts)
    capacity = check_capacity(capacity)
    order = np.arange(tokens) if order is None else as_order(order, tokens)

    # Selection.
    chosen = stable_order(scores)[:, :choices]

    # Slots, dispatch, combine.
    dispatch = np.zeros((tokens, experts, capacity))
    combine = np.zeros((tokens, experts, capacity), dtype=combine_scores.dtype)
    filled = [0] * experts
    for choice in range(choices):
        for token in order:
            expert = chosen[token, choice]
            slot = filled[expert]
            if slot < capacity:
                dispatch[token, expert, slot] = 1.0
                combine[token, expert, slot] = combine_scores[token, expert]
                filled[expert] += 1
    return Routing(dispatch, combine)
