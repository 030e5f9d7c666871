"""Metrics of a routing. The metrics carry no gradient.

Often done differently

ME-1: Which tokens or choices count as dropped?
    Reading: every token that no expert processes counts as dropped.
        By: Soft MoE (arXiv 2308.00951), appendix B.
    Alternative b: every choice without a slot counts as dropped, even if another expert processes the token.
"""

import numpy as np

from moespec.spec.checks import check_same_shape
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["routing_metrics"]


def routing_metrics(routing: Routing) -> dict[str, Array]:
    """Computes the load of each expert, the fraction of tokens that are processed, and the mean entropy of the tokens' combine weights.

        load[e]   = 1 / T sum_t,c dispatch[t, e, c]       for a sparse routing: the expert's filled slots / T
        coverage  = 1 / T #{t : dispatch[t, e, c] > 0 for some e, c}
        dropped   = 1 - coverage
        entropy   = -1 / T sum_t,e m[t, e] log m[t, e]    in nats

    where `m[t, e]` is `sum_c combine[t, e, c]` divided by its sum over all experts: the fraction of token t's combine weight on expert e.
    A token without positive combine weights has entropy 0.

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity); combine weights are at least 0.

    Returns:
        `load` (experts,) and the scalars `coverage`, `dropped` and `entropy`.

    Source: Soft MoE, appendix B, for the definition of a dropped token.

    >>> from moespec.spec import token_choice
    >>> from moespec.spec.examples import TIED_SCORES
    >>> metrics = routing_metrics(token_choice(TIED_SCORES, choices=2, capacity=2))
    >>> metrics["load"].tolist(), float(metrics["coverage"]), float(metrics["dropped"])
    ([0.4, 0.4, 0.4], 1.0, 0.0)
    >>> round(float(metrics["entropy"]), 10)  # one of five tokens has two experts, with weights 1/2 and 1/4
    0.1273028337
    """
    dispatch, combine = tensors(routing)
    coverage = np.mean((dispatch > 0).any(axis=(1, 2)), dtype=np.float64)
    mass = combine.sum(axis=2)
    total = mass.sum(axis=1, keepdims=True)
    fraction = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    surprise = -np.log(fraction, out=np.zeros_like(fraction), where=fraction > 0)
    return {
        "load": dispatch.sum(axis=(0, 2)) / len(dispatch),
        "coverage": coverage,
        "dropped": 1.0 - coverage,
        "entropy": np.mean(np.sum(fraction * surprise, axis=1)),
    }


def tensors(routing: Routing) -> tuple[Array, Array]:
    """Checks the dispatch and combine tensors of a routing and returns them without gradients."""
    dispatch = stop_gradient(as_array("routing.dispatch", routing.dispatch, "tokens experts capacity"))
    combine = stop_gradient(as_array("routing.combine", routing.combine, "tokens experts capacity"))
    check_same_shape("routing.combine", combine, "routing.dispatch", dispatch)
    return dispatch, combine
