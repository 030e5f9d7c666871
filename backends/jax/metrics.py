"""Statistics of routings and slots, without gradient.

Shape comments: G groups, T tokens, E experts, C capacity, D width.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax import namespace as xp
from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.gathers import values_by_expert
from moespec.backends.jax.slots import SlotRouting, SoftRouting
from moespec.backends.once.soft_moe import inverse_norm
from moespec.spec.checks import check_scores

__all__ = [
    "collapse_metrics",
    "cumulative_dispatch",
    "experts_per_token",
    "routing_metrics",
    "slot_similarity",
    "summed_dispatch",
]


def routing_metrics(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """Each the mean over the groups: load (E,), and the scalars coverage, dropped and entropy."""
    routing = lax.stop_gradient(routing)
    if isinstance(routing, SlotRouting):
        tokens = routing.tokens
        mass = values_by_expert(tokens, routing.weight, routing.token, routing.slot)
        filled = jnp.sum(routing.token < tokens, axis=2).astype(mass.dtype)
        if routing.slot is not None:
            covered = jnp.any(routing.slot < routing.token[0].size, axis=2)
        else:
            absent = jnp.zeros(tokens, bool)
            covered = jax.vmap(lambda t: absent.at[t].set(True, mode="drop"))(routing.token)
    else:
        tokens = routing.dispatch.shape[1]
        mass = jnp.sum(routing.combine, axis=3)
        filled = jnp.sum(routing.dispatch, axis=(1, 3))
        covered = jnp.any(routing.dispatch > 0, axis=(2, 3))
    return {
        "load": jnp.mean(filled, axis=0) / tokens,
        "coverage": jnp.mean(covered.astype(mass.dtype)),
        "dropped": jnp.mean((~covered).astype(mass.dtype)),
        "entropy": _entropy(mass),
    }


def _entropy(mass: Array) -> Array:
    """Mean entropy of the rows of `mass` (G, T, E), normalised to sum 1; 0 for a row without mass.

    The mean comes before the sum: XLA would make one long sum of two, whose rounding errors add up.
    """
    total = jnp.sum(mass, axis=-1, keepdims=True)
    share = mass / jnp.where(total > 0, total, 1)
    terms = jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0)
    return -jnp.sum(jnp.mean(terms, axis=(0, 1)))


def collapse_metrics(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """Each the mean over the groups: the scalars dispatch_max and combine_max."""
    routing = lax.stop_gradient(routing)
    if isinstance(routing, SlotRouting):
        weight = values_by_expert(routing.tokens, routing.weight, routing.token, routing.slot)
        return {"dispatch_max": jnp.mean(_filled(routing)), "combine_max": jnp.mean(jnp.max(weight, axis=2))}
    return {
        "dispatch_max": jnp.mean(jnp.max(routing.dispatch, axis=1)),
        "combine_max": jnp.mean(jnp.max(routing.combine, axis=(2, 3))),
    }


def summed_dispatch(routing: SlotRouting | SoftRouting) -> Array:
    """(G, T)."""
    routing = lax.stop_gradient(routing)
    if isinstance(routing, SlotRouting):
        return _experts(routing).astype(routing.weight.dtype)
    return jnp.sum(routing.dispatch, axis=(2, 3))


def cumulative_dispatch(routing: SlotRouting | SoftRouting) -> Array:
    """(G, T)."""
    routing = lax.stop_gradient(routing)
    if isinstance(routing, SlotRouting):
        mean = jnp.mean(_filled(routing), axis=(1, 2))
        return jnp.broadcast_to(mean[:, None], (len(mean), routing.tokens))
    return jnp.mean(jnp.cumsum(-jnp.sort(-routing.dispatch, axis=1), axis=1), axis=(2, 3))


def experts_per_token(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """Each the mean over the groups, scalars."""
    count = _experts(routing)
    dtype = (routing.weight if isinstance(routing, SlotRouting) else routing.dispatch).dtype
    shares = {f"at_least_{n}": jnp.mean((count >= n).astype(dtype)) for n in (1, 2, 4)}
    ends = {"experts_min": jnp.min(count, axis=1), "experts_max": jnp.max(count, axis=1)}
    return {**{name: jnp.mean(end.astype(dtype)) for name, end in ends.items()}, **shares}


def slot_similarity(slots: Array) -> Array:
    """slots (D, E, C) -> (E * C, E * C)."""
    check_scores("slots", slots, "width experts capacity")
    phi = lax.stop_gradient(wide(slots)).reshape(len(slots), -1)
    unit = phi * inverse_norm(xp, phi, 0, "paper")
    return jnp.einsum("di,dj->ij", unit, unit, precision=lax.Precision.HIGHEST)


def _filled(routing: SlotRouting) -> Array:
    """1 for a slot that holds a token, else 0: (G, E, C)."""
    return (routing.token < routing.tokens).astype(routing.weight.dtype)


def _experts(routing: SlotRouting | SoftRouting) -> Array:
    """How many experts process each token: (G, T) int32."""
    if isinstance(routing, SoftRouting):
        return jnp.sum(jnp.any(routing.dispatch > 0, axis=3), axis=2, dtype=jnp.int32)
    if routing.slot is not None:
        return jnp.sum(routing.slot < routing.token[0].size, axis=2, dtype=jnp.int32)
    none = jnp.zeros(routing.tokens, jnp.int32)
    count: Array = jax.vmap(lambda token: none.at[token].add(1, mode="drop"))(routing.token)
    return count
