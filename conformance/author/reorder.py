"""What known variants of several algorithms have in common: other orders, chosen experts, renormalised weights."""

from typing import Any

import numpy as np

from moespec.spec.numerics import stable_order

__all__ = ["chosen_mask", "heap_order", "renormalised", "weighted_by"]


def heap_order(values: Any, axis: int = -1) -> Any:
    """Descending, by a sort that is not stable."""
    return np.argsort(-values.real, axis=axis, kind="heapsort")


def chosen_mask(scores: Any, choices: int) -> Any:
    """1 for the experts that a token chooses, 0 for the others: (groups, tokens, experts)."""
    mask = np.zeros(scores.shape)
    np.put_along_axis(mask, stable_order(scores)[..., :choices], 1.0, axis=2)
    return mask


def renormalised(routing: Any) -> Any:
    """The routing with the weights of a token divided by their sum, where that is positive."""
    total = routing.dense().combine.sum(axis=(2, 3))
    total = np.concatenate([np.where(total.real > 0, total, 1), np.ones_like(total[:, :1])], 1)
    of_each = np.take_along_axis(total, routing.token.reshape(len(total), -1), 1)
    return routing._replace(weight=routing.weight / of_each.reshape(routing.token.shape))


def weighted_by(routing: Any, scores: Any) -> Any:
    """The routing with the combine weights taken from `scores` (groups, tokens, experts)."""
    of_none = np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)
    weight = np.take_along_axis(of_none, routing.token.swapaxes(1, 2), axis=1).swapaxes(1, 2)
    return routing._replace(weight=weight)
