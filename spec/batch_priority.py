"""Batch Priority Routing: tokens with the highest scores are served first.

Ambiguity ledger

BP-1: What is the priority of a token that makes several choices?
    Reading: its highest score.
    Alternatives: the sum of the scores of its choices (`by="sum"`).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moespec.spec.checks import as_array, check_choices, check_option
from moespec.spec.numerics import stable_order

__all__ = ["batch_priority"]


def batch_priority(scores: ArrayLike, *, by: str = "max", choices: int = 1) -> NDArray[np.intp]:
    """The order in which `token_choice` serves the tokens: descending priority, ties by index.

    Args:
        scores: (tokens, experts), the scores of the selection.
        by: "max", `s[t] = max_e scores[t, e]`; or "sum", over the `choices` largest scores of the token.
        choices: experts K that a token chooses.

    Returns:
        (tokens,) integers, a permutation.

    Source: V-MoE, section 4. Section 4.

    >>> from moespec.spec.examples import LOGITS
    >>> from moespec.spec.softmax import softmax_affinity
    >>> batch_priority(softmax_affinity(LOGITS)).tolist()
    [4, 1, 5, 0, 3, 2]
    """
    scores = as_array("scores", scores, "tokens experts").real
    check_option("by", by, ("max", "sum"))
    choices = check_choices(choices, scores.shape[1])
    best = np.take_along_axis(scores, stable_order(scores)[:, : choices if by == "sum" else 1], axis=1)
    return stable_order(best.sum(axis=1))
