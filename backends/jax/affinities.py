"""Affinities: logits to scores, by softmax and by Sinkhorn. Transport is in `transport.py`.

Shape comments: G groups, T tokens, E experts, D width. Everything is computed in float32 or better.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from moespec.backends.jax.arrays import Array, wide
from moespec.spec.checks import (
    check_at_least,
    check_non_negative,
    check_positive,
    check_same_shape,
    check_scores,
    check_size,
)

__all__ = [
    "add_gating_noise",
    "router_jitter",
    "router_logits",
    "sigmoid_affinity",
    "sinkhorn_affinity",
    "softmax_affinity",
]


def router_logits(tokens: Array, kernel: Array) -> Array:
    """tokens (G, T, D), kernel (D, E) -> (G, T, E), at the highest precision of the device."""
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[2], "the width of tokens")
    return jnp.einsum("gtd,de->gte", wide(tokens), wide(kernel), precision=lax.Precision.HIGHEST)


def add_gating_noise(logits: Array, noise: Array | None, *, multiplier: float = 1.0) -> Array:
    """logits and noise (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, "groups tokens experts")
    check_non_negative("multiplier", multiplier)
    if noise is None:
        return wide(logits)
    check_scores("noise", noise, "groups tokens experts")
    check_same_shape("noise", noise, "logits", logits)
    logits = wide(logits)
    return logits + multiplier / logits.shape[2] * jnp.asarray(noise).astype(logits.dtype)


def router_jitter(tokens: Array, noise: Array | None, *, epsilon: float = 0.01) -> Array:
    """tokens and noise (G, T, D) -> (G, T, D)."""
    check_scores("tokens", tokens, "groups tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return wide(tokens)
    check_scores("noise", noise, "groups tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    return wide(tokens) * (1 + epsilon * wide(noise))


def softmax_affinity(logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, "groups tokens experts")
    return jax.nn.softmax(wide(logits), axis=2)


def sigmoid_affinity(logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, "groups tokens experts")
    return jax.nn.sigmoid(wide(logits))


def sinkhorn_affinity(logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """logits (G, T, E) -> (G, T, E).

    The number of iterations is fixed: with a `tolerance`, a group that has reached it keeps its plan while the others go on.
    Differentiable through the iterations.
    """
    check_scores("logits", logits, "groups tokens experts")
    iterations = check_at_least("iterations", iterations, 1)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    logits = wide(logits)
    groups, tokens, experts = logits.shape
    column_mass = tokens / experts

    def update(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row, column, done = state
        new_column = math.log(column_mass) - logsumexp(logits + row, axis=1, keepdims=True)
        new_row = -logsumexp(logits + new_column, axis=2, keepdims=True)
        if tolerance is None:
            return new_row, new_column, done
        row, column = jnp.where(done, row, new_row), jnp.where(done, column, new_column)
        sums = jnp.sum(jnp.exp(logits + row + column), axis=1, keepdims=True)
        error = jnp.max(jnp.abs(sums - column_mass), axis=2, keepdims=True)
        return row, column, done | (error <= tolerance)

    row = jnp.zeros((groups, tokens, 1), logits.dtype)
    column = jnp.zeros((groups, 1, experts), logits.dtype)
    done = jnp.zeros((groups, 1, 1), bool)
    row, column, _ = lax.fori_loop(0, iterations, update, (row, column, done))
    return jnp.exp(logits + row + column)
