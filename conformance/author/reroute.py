"""What known variants have in common: other orders and weights, and changes of a router.

A change is `(B, route, params, tokens, options, noise=None, train=False)`.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from moespec.spec.numerics import stable_order

__all__ = [
    *("chosen_mask", "configured", "heap_order", "noiseless", "renormalised", "rerouted", "reweighted"),
    "weighted_by",
]


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


def configured(**changed: Any) -> Callable[..., Any]:
    """The router with some of its options, where it has them, as they are here."""

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        own = {field.name for field in fields(options)}
        options = replace(options, **{name: value for name, value in changed.items() if name in own})
        return route(params, tokens, options, **more)

    return change


def noiseless(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The router without the noise that it is given."""
    return route(params, tokens, options, train=train)


def rerouted(B: Any, output: Any, routing: Any) -> Any:
    """The output of a router with another routing, and the metrics of that."""
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


def reweighted(B: Any, output: Any, scores: Any) -> Any:
    """The output of a router with the combine weights taken from `scores` (groups, tokens, experts)."""
    return rerouted(B, output, weighted_by(output.routing, scores))
