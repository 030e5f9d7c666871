"""Auxiliary losses, unweighted, and what to report about a routing: all are means over groups, in float32 or better.

Shape comments: G groups, T tokens, E experts, C capacity.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from moespec.backends.jax.arrays import Array, top_indices, wide
from moespec.backends.jax.gathers import values_by_expert
from moespec.backends.jax.slots import SlotRouting, SoftRouting
from moespec.spec.checks import check_choices, check_positive, check_same_shape, check_scores

__all__ = [
    "balance_loss",
    "importance_loss",
    "load_loss",
    "routing_metrics",
    "z_loss",
]


def importance_loss(scores: Array) -> Array:
    """The mean over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, "groups tokens experts")
    return squared_variation(jnp.sum(wide(scores), axis=1))


def load_loss(logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """The mean over the groups: logits and noisy_logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, "groups tokens experts")
    check_scores("noisy_logits", noisy_logits, "groups tokens experts")
    check_same_shape("noisy_logits", noisy_logits, "logits", logits)
    choices = check_choices(choices, logits.shape[2])
    noise_std = check_positive("noise_std", noise_std)
    noisy_logits = wide(noisy_logits)
    last = top_indices(noisy_logits, choices)[..., -1:]
    excess = (pick(noisy_logits, last) - wide(logits)) / noise_std
    return squared_variation(jnp.sum(0.5 * lax.erfc(excess / math.sqrt(2)), axis=1))


def balance_loss(scores: Array) -> Array:
    """The mean over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, "groups tokens experts")
    scores = wide(scores)
    experts = scores.shape[2]
    first = jax.nn.one_hot(jnp.argmax(scores, axis=2), experts, dtype=scores.dtype)
    share = lax.stop_gradient(jnp.mean(first, axis=1))
    return jnp.mean(experts * jnp.sum(share * jnp.mean(scores, axis=1), axis=1))


def z_loss(logits: Array) -> Array:
    """The mean over the groups: logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, "groups tokens experts")
    return jnp.mean(jnp.square(logsumexp(wide(logits), axis=2)))


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


def pick(values: Array, expert: Array) -> Array:
    """The value of one expert for each token, by a mask, so that its gradient is a mask too and not a scatter.

    values: (G, T, E); expert: (G, T, 1) integers; returns (G, T, 1).
    """
    is_picked = jnp.arange(values.shape[2], dtype=expert.dtype) == expert
    return jnp.sum(jnp.where(is_picked, values, 0), axis=2, keepdims=True)


def squared_variation(values: Array) -> Array:
    """Mean over groups of `var(values) / mean(values)^2` along the last axis (population variance)."""
    return jnp.mean(jnp.var(values, axis=1) / jnp.square(jnp.mean(values, axis=1)))
