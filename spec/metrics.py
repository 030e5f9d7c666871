"""What to report about a routing. Metrics carry no gradient."""

import numpy as np

from moespec.spec.checks import as_array, check_same_shape
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Routing

__all__ = ["routing_metrics"]


def routing_metrics(routing: Routing) -> dict[str, Array]:
    """How evenly and how completely a routing serves the tokens.

        load[e]   = sum_t,c dispatch[t, e, c] / T       for a sparse routing the filled slots of the expert / T
        coverage  = share of tokens with a dispatch weight greater than 0 anywhere
        dropped   = 1 - coverage
        entropy   = mean_t H(m[t])                      in nats; m[t, e] = sum_c combine[t, e, c], normalised to sum 1

    Tokens without combine mass count with entropy 0.

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).

    Returns:
        `load` (experts,), and the numbers `coverage`, `dropped`, `entropy`.

    >>> from moespec.spec.examples import TIED_SCORES
    >>> from moespec.spec.token_choice import token_choice
    >>> metrics = routing_metrics(token_choice(TIED_SCORES, choices=1, capacity=1))
    >>> metrics["load"].tolist(), float(metrics["coverage"]), float(metrics["entropy"])
    ([0.2, 0.2, 0.2], 0.6, 0.0)
    """
    dispatch = stop_gradient(as_array("routing.dispatch", routing.dispatch, "tokens experts capacity"))
    combine = stop_gradient(as_array("routing.combine", routing.combine, "tokens experts capacity"))
    check_same_shape("routing.combine", combine, "routing.dispatch", dispatch)
    served = (dispatch > 0).any(axis=(1, 2))
    mass = combine.sum(axis=2)
    total = mass.sum(axis=1, keepdims=True)
    share = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    surprise = -np.log(share, out=np.zeros_like(share), where=share > 0)
    coverage = np.mean(served, dtype=np.float64)
    return {
        "load": dispatch.sum(axis=(0, 2)) / len(dispatch),
        "coverage": np.asarray(coverage),
        "dropped": np.asarray(1.0 - coverage),
        "entropy": np.mean(np.sum(share * surprise, axis=1)),
    }
