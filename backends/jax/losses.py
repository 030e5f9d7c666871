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

__all__ = ["balance_loss", "importance_loss", "load_loss", "pick", "routing_metrics", "squared_variation", "z_loss"]


def importance_loss(scores: Array) -> Array:
    """Squared coefficient of variation over experts of `sum_t scores[t, e]`, with the population variance.

    scores: (groups, tokens, experts), the softmax of the clean logits. Returns a scalar.

    Source: V-MoE; Routers, appendix A. Section 10.1.
    """
    check_scores("scores", scores, "groups tokens experts")
    return squared_variation(jnp.sum(wide(scores), axis=1))


def load_loss(logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """Squared coefficient of variation of `sum_t P(L[t, e] + noise >= eta[t])`, `eta` the K-th largest noisy logit.

    logits, noisy_logits: (groups, tokens, experts); noise_std: standard deviation of the noise. Returns a scalar.
    Raises ConfigError for `choices` outside 1..E or `noise_std <= 0`.

    Source: Routers, eqs. (12)-(15). Section 10.2.
    """
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
    """`E sum_e f_e P_e`, with `f_e` the share of tokens whose first choice is `e` and `P_e` the mean score of `e`.

    scores: (groups, tokens, experts). Returns a scalar. Only `P` carries gradient.

    Source: Switch; GShard. Section 10.5.
    """
    check_scores("scores", scores, "groups tokens experts")
    scores = wide(scores)
    experts = scores.shape[2]
    first = jax.nn.one_hot(jnp.argmax(scores, axis=2), experts, dtype=scores.dtype)
    share = lax.stop_gradient(jnp.mean(first, axis=1))
    return jnp.mean(experts * jnp.sum(share * jnp.mean(scores, axis=1), axis=1))


def z_loss(logits: Array) -> Array:
    """`mean_t (logsumexp_e L[t, e])^2`.

    logits: (groups, tokens, experts). Returns a scalar.

    Source: ST-MoE (arXiv 2202.08906). Section 10.6.
    """
    check_scores("logits", logits, "groups tokens experts")
    return jnp.mean(jnp.square(logsumexp(wide(logits), axis=2)))


def routing_metrics(routing: SlotRouting | SoftRouting) -> dict[str, Array]:
    """What to log about a routing; means over groups, without gradient.

    load: (E,), filled slots of each expert per token (soft routing: the sum of its dispatch weights per token).
    coverage, dropped: share of tokens in at least one slot, and in none.
    entropy: mean over tokens of the entropy (nats) of a token's combine weight per expert, normalised to sum 1; a
        token without weight counts as 0.
    """
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
        "entropy": jnp.mean(_entropy(mass)),
    }


def _entropy(mass: Array) -> Array:
    """Entropy along the last axis of `mass` normalised to sum 1; 0 where there is none."""
    total = jnp.sum(mass, axis=-1, keepdims=True)
    share = mass / jnp.where(total > 0, total, 1)
    return -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0), axis=-1)


def pick(values: Array, expert: Array) -> Array:
    """The value of one expert for each token, by a mask, so that its gradient is a mask too and not a scatter.

    values: (G, T, E); expert: (G, T, 1) integers; returns (G, T, 1).
    """
    is_picked = jnp.arange(values.shape[2], dtype=expert.dtype) == expert
    return jnp.sum(jnp.where(is_picked, values, 0), axis=2, keepdims=True)


def squared_variation(values: Array) -> Array:
    """Mean over groups of `var(values) / mean(values)^2` along the last axis (population variance)."""
    return jnp.mean(jnp.var(values, axis=1) / jnp.square(jnp.mean(values, axis=1)))
