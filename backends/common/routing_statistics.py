"""Statistics of routings and slots, without gradient. A training step computes only `routing_metrics`, not these statistics."""

from moespec.backends.common.namespace import Array, BySlot, Dense, Namespace, RoutingNamespace
from moespec.backends.common.soft_moe import inverse_norm
from moespec.spec.checks import check_scores

__all__ = ["collapse_metrics", "cumulative_dispatch", "experts_per_token", "slot_similarity", "summed_dispatch"]


def collapse_metrics(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> dict[str, Array]:
    """Returns the scalars dispatch_max and combine_max, averaged over the groups."""
    if isinstance(routing, xp.SlotRouting):
        weight = xp.by_expert(routing, xp.stop_gradient(routing.weight))
        return {"dispatch_max": xp.mean(_filled(xp, routing)), "combine_max": xp.mean(xp.max(weight, 2))}
    combine = xp.stop_gradient(xp.promote(routing.combine))
    return {
        "dispatch_max": xp.mean(xp.max(_dispatch(xp, routing), 1)),
        "combine_max": xp.mean(xp.max(xp.max(combine, 3), 2)),
    }


def summed_dispatch(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> Array:
    """(G, T)."""
    if isinstance(routing, xp.SlotRouting):
        return xp.sum(xp.by_expert(routing, _filled(xp, routing)), 2)
    return xp.sum(_dispatch(xp, routing), (2, 3))


def cumulative_dispatch(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> Array:
    """(G, T)."""
    if isinstance(routing, xp.SlotRouting):
        mean = xp.mean(_filled(xp, routing), (1, 2))
        return xp.broadcast_to(mean[:, None], (mean.shape[0], routing.tokens))
    of_slots = xp.swapaxes(_dispatch(xp, routing), 1, 3)
    descending, _ = xp.largest(of_slots, of_slots.shape[3])
    return xp.mean(xp.cumsum(descending, -1), (1, 2))


def experts_per_token(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> dict[str, Array]:
    """Returns statistics of the number of experts per token, averaged over the groups."""
    if isinstance(routing, xp.SlotRouting):
        count = summed_dispatch(xp, routing)
    else:
        dispatch = _dispatch(xp, routing)
        count = xp.sum(xp.cast(xp.max(dispatch, 3) > 0, dispatch.dtype), 2)
    shares = {f"at_least_{n}": xp.mean(xp.cast(count >= n, count.dtype)) for n in (1, 2, 4)}
    return {"experts_min": xp.mean(-xp.max(-count, 1)), "experts_max": xp.mean(xp.max(count, 1)), **shares}


def slot_similarity(xp: Namespace[Array], slots: Array) -> Array:
    """slots (D, E, C) -> (E * C, E * C)."""
    check_scores("slots", slots, "width experts capacity")
    phi = xp.stop_gradient(xp.promote(slots)).reshape(slots.shape[0], -1)
    unit = phi * inverse_norm(xp, phi, 0, "paper")
    return xp.product(xp.swapaxes(unit, 0, 1)[None], unit)[0]


def _dispatch(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> Array:
    """The dispatch tensor (G, T, E, C) of a dense routing, without gradient."""
    return xp.stop_gradient(xp.promote(routing.dispatch))


def _filled(xp: RoutingNamespace[Array, BySlot, Dense], routing: BySlot | Dense) -> Array:
    """Returns an array (G, E, C) with 1 for each filled slot and 0 for each empty slot."""
    return xp.cast(routing.token < routing.tokens, routing.weight.dtype)
