"""The capped affinity, computed by Dykstra's algorithm."""

import math

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.capped_affinity import check_cap
from moespec.spec.checks import check_at_least, check_positive, check_scores

__all__ = ["capped_affinity"]


def capped_affinity(
    xp: Namespace[Array], scores: Array, *, capacity: int, cap: int, regularization: float = 1e-3, iterations: int = 100
) -> Array:
    """scores (G, T, E) -> (G, T, E)."""
    check_scores("scores", scores, "groups tokens experts")
    check_cap(capacity, cap, *scores.shape[1:])
    iterations = check_at_least("iterations", iterations, 1)
    start = xp.stop_gradient(xp.promote(scores)) / check_positive("regularization", regularization)
    return xp.whole(dykstra)(xp, start, capacity, cap, iterations)


def dykstra(xp: Namespace[Array], start: Array, capacity: int, cap: int, iterations: int) -> Array:
    """Returns the affinity (G, T, E). The iterations work in log space and begin at `start`."""

    def project(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        a, of_rows, of_entries = state
        a = a + (math.log(capacity) - xp.logsumexp(a, 1, keepdims=True)) + of_rows
        of_rows = xp.maximum(xp.logsumexp(a, 2, keepdims=True) - math.log(cap), 0.0)
        a = a - of_rows + of_entries
        of_entries = xp.maximum(a, 0.0)
        return a - of_entries, of_rows, of_entries

    zeros = xp.zeros_like(start)
    return xp.exp(xp.loop(iterations, project, (start, zeros[..., :1], zeros))[0])
