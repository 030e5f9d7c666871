"""The routing metrics that every step computes, without gradient. Shape comments: G groups, T tokens, E experts."""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array
from moespec.backends.jax.gathers import values_by_expert
from moespec.backends.jax.slots import SlotRouting, SoftRouting

__all__ = ["routing_metrics"]


def routing_metrics(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """Returns the load (E,) and the scalars coverage, dropped and entropy, averaged over the groups."""
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
    """The mean entropy of the rows of `mass` (G, T, E), after each row is divided by its sum. A row without mass has entropy 0.

    Averages over rows before the sum over experts, because XLA would merge two sums into one long sum with larger rounding errors.
    """
    total = jnp.sum(mass, axis=-1, keepdims=True)
    share = mass / jnp.where(total > 0, total, 1)
    terms = jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0)
    return -jnp.sum(jnp.mean(terms, axis=(0, 1)))
