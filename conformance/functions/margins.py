"""Computes tie margins, which measure how far a case's discrete choices are from a tie.

A margin is the smallest `(a - b) / (A_a + A_b)` over neighbours a >= b of an observable order, where A is the scale of each score. Each
score can have an error of `c * u * A`, so the choice is certain if the margin exceeds `c * u`. Neighbours that are both exactly 0 or both
exactly 1 are ignored, because the token or expert index orders equal entries of a plan and of capped affinities.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

__all__ = ["assignment_margin", "best_experts", "expert_choice_margin", "order_margin", "token_choice_margin"]

Array = NDArray[Any]


def best_experts(choices: int | str) -> Callable[[Array, Array, Mapping[str, Any]], float]:
    """Return the margin function for tokens that choose `choices` experts each. choices: a number, or the name of an option."""
    return lambda scores, scale, options: token_choice_margin(
        scores, scale, options[choices] if isinstance(choices, str) else choices
    )


def token_choice_margin(scores: Array, scale: Array, choices: int) -> float:
    """Return the smallest margin among the best `choices + 1` experts of any token. scores, scale: `(..., tokens, experts)`."""
    return _margin(scores, scale, choices)


def expert_choice_margin(scores: Array, scale: Array, capacity: int) -> float:
    """Return the smallest margin among the best `capacity + 1` tokens of any expert."""
    return _margin(np.swapaxes(scores, -1, -2), np.swapaxes(scale, -1, -2), capacity)


def assignment_margin(scores: Array, scale: Array) -> float:
    """Return the margin between the best and the second-best balanced assignment. scores, scale: `(tokens, experts)`.

    Every other assignment moves at least one token, so the search excludes the assigned expert of each token in turn.
    """
    tokens, experts = scores.shape
    columns = np.repeat(scores, tokens // experts, axis=1)
    own = np.repeat(np.eye(experts, dtype=bool), tokens // experts, axis=1)
    _, best = linear_sum_assignment(columns, maximize=True)
    allowed = np.repeat(scale, tokens // experts, axis=1)
    margin = np.inf
    for token in range(tokens) if experts > 1 else ():
        barred = np.where((np.arange(tokens) == token)[:, None] & own[best[token] * experts // tokens], -1e9, columns)
        rows, other = linear_sum_assignment(barred, maximize=True)
        gain = (columns[rows, best] - columns[rows, other]).sum()
        margin = min(margin, gain / (allowed[rows, best] + allowed[rows, other]).sum())
    return float(margin)


def order_margin(priority: Array, scale: Array) -> float:
    """Return the smallest margin between neighbouring tokens in the order of priority. priority: `(..., tokens)`."""
    return _margin(priority, scale, priority.shape[-1])


def _margin(scores: Array, scale: Array, selected: int) -> float:
    """Return the smallest relative gap among the `selected + 1` largest scores along the last axis."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., : selected + 1]
    values, scales = np.take_along_axis(scores, order, -1), np.take_along_axis(scale, order, -1)
    gaps, sums = values[..., :-1] - values[..., 1:], scales[..., :-1] + scales[..., 1:]
    ratios = np.divide(gaps, sums, out=np.full(gaps.shape, np.inf), where=sums > 0)
    for bound in (0, 1):
        ratios[(values[..., :-1] == bound) & (values[..., 1:] == bound)] = np.inf
    return float(ratios.min(initial=np.inf))
