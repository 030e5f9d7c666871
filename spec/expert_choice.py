"""Expert Choice (Algorithm 2): each expert chooses its C best tokens.

Ambiguity ledger

EC-1: Which token wins among equal scores?
    Reading: the lower index.
    Alternatives: the higher index; whatever an unstable sort returns.
EC-2: Are slots that only tokens of score 0 could fill left empty?
    Reading: no, the lowest indices fill them.
    Alternatives: left empty (`drop_zero=True`).
EC-3: What if the capacity exceeds the number of tokens?
    Reading: an error.
    Alternatives: the capacity is cut to the number of tokens.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_capacity, check_same_shape
from moespec.spec.numerics import stable_order
from moespec.spec.routing import Routing

__all__ = ["expert_choice"]


def expert_choice(
    scores: ArrayLike, *, capacity: int, combine_scores: ArrayLike | None = None, drop_zero: bool = False
) -> Routing:
    """Expert Choice allocation.

    Args:
        scores: (tokens, experts), by which experts choose.
        capacity: slots C per expert, `1 <= C <= tokens`.
        combine_scores: (tokens, experts), the weights of the chosen; `scores` if None.
        drop_zero: leave a slot empty whose token has a score of at most 0.

    Returns:
        Routing with `dispatch` in {0, 1} and `combine = combine_scores * dispatch`, each (tokens, experts, capacity).
        Slot 0 holds the best token.

    Source: Routers, Algorithm 2; Zhou et al. 2022 (arXiv 2202.09368). Section 5.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> from moespec.spec.routing import slot_tokens
    >>> routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    >>> slot_tokens(routing).tolist()
    [[4, 1], [5, 2], [3, 2]]
    >>> round(float(routing.combine.sum()), 10)
    3.5213721945
    """
    # Scores.
    scores = as_array("scores", scores, "tokens experts")
    combine_scores = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    tokens, experts = scores.shape
    capacity = check_capacity(capacity, tokens)

    # Selection.
    chosen = stable_order(scores, axis=0)[:capacity]

    # Slots, dispatch, combine.
    dispatch = np.zeros((tokens, experts, capacity))
    combine = np.zeros((tokens, experts, capacity), dtype=combine_scores.dtype)
    for expert in range(experts):
        for slot in range(capacity):
            token = chosen[slot, expert]
            if drop_zero and scores[token, expert].real <= 0:
                continue
            dispatch[token, expert, slot] = 1.0
            combine[token, expert, slot] = combine_scores[token, expert]
    return Routing(dispatch, combine)
