"""BASE layers: the best expert of each token, and the routing for a given assignment (see the backend's `base_assignment`)."""

from moespec.backends.common.allocations import token_choice
from moespec.backends.common.namespace import Array, BySlot, Dense, Namespace, RoutingNamespace
from moespec.spec.checks import check_one_per_token, check_scores

__all__ = ["base_greedy", "base_routing"]


def base_greedy(xp: Namespace[Array], scores: Array) -> Array:
    """scores (G, T, E) -> (G, T) int32."""
    check_scores("scores", scores, "groups tokens experts")
    return xp.top_indices(xp.promote(scores), 1)[..., 0]


def base_routing(xp: RoutingNamespace[Array, BySlot, Dense], scores: Array, expert: Array, *, capacity: int) -> BySlot:
    """scores (G, T, E), expert (G, T) integers -> SlotRouting. The function does not check that the expert numbers are valid."""
    check_scores("scores", scores, "groups tokens experts")
    check_one_per_token("expert", expert, scores.shape[:2])
    scores = xp.promote(scores)
    chosen = xp.cast(expert[..., None] == xp.indices(scores.shape[2], scores), scores.dtype)
    return token_choice(xp, chosen, choices=1, capacity=capacity, combine_scores=xp.sigmoid(scores))
