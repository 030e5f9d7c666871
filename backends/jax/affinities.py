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
from moespec.spec.errors import ConfigError

__all__ = [
    "add_gating_noise",
    "router_jitter",
    "router_logits",
    "sigmoid_affinity",
    "sinkhorn_affinity",
    "softmax_affinity",
]


def router_logits(tokens: Array, kernel: Array) -> Array:
    """Logits `tokens @ kernel`, in float32 or better and at the highest precision of the device.

    tokens: (groups, tokens, width); kernel: (width, experts). Returns (groups, tokens, experts).

    Source: Routers, eq. (1). Section 2.1.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[2], "the width of tokens")
    return jnp.einsum("gtd,de->gte", wide(tokens), wide(kernel), precision=lax.Precision.HIGHEST)


def add_gating_noise(logits: Array, noise: Array | None, *, multiplier: float = 1.0) -> Array:
    """`logits + multiplier / experts * noise`; with `noise=None` the logits unchanged.

    logits, noise: (groups, tokens, experts); noise is a draw of the standard normal.
    Raises ConfigError for a negative multiplier.

    Source: V-MoE, section 2; the code of V-MoE. Section 2.2.
    """
    check_scores("logits", logits, "groups tokens experts")
    if not (multiplier >= 0 and math.isfinite(multiplier)):
        raise ConfigError(f"multiplier: expected a finite number of at least 0, got {multiplier!r}")
    if noise is None:
        return wide(logits)
    check_scores("noise", noise, "groups tokens experts")
    check_same_shape("noise", noise, "logits", logits)
    logits = wide(logits)
    return logits + multiplier / logits.shape[2] * jnp.asarray(noise).astype(logits.dtype)


def router_jitter(tokens: Array, noise: Array | None, *, epsilon: float = 0.01) -> Array:
    """The tokens as the router sees them in training, `tokens (1 + epsilon noise)`; with `noise=None` unchanged.

    tokens, noise: (groups, tokens, width); noise is uniform on [-1, 1]. Returns the same shape.
    Raises ConfigError for a negative epsilon.

    Source: Switch (arXiv 2101.03961), section 2.4. Section 2.5.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return wide(tokens)
    check_scores("noise", noise, "groups tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    return wide(tokens) * (1 + epsilon * wide(noise))


def softmax_affinity(logits: Array) -> Array:
    """`A[g, t, e] = exp(L[g, t, e]) / sum_e' exp(L[g, t, e'])`: the share of each expert in a token.

    logits: (groups, tokens, experts); returns the same shape, rows sum to 1.

    Source: Routers, eqs. (1), (6), (7). Section 2.1.
    """
    check_scores("logits", logits, "groups tokens experts")
    return jax.nn.softmax(wide(logits), axis=2)


def sigmoid_affinity(logits: Array) -> Array:
    """Each expert by itself, `1 / (1 + exp(-L[g, t, e]))`.

    logits: (groups, tokens, experts); returns the same shape.

    Source: the router of Megatron-LM with one choice. Section 7.3.
    """
    check_scores("logits", logits, "groups tokens experts")
    return jax.nn.sigmoid(wide(logits))


def sinkhorn_affinity(logits: Array, *, iterations: int = 20, tolerance: float | None = None) -> Array:
    """The plan of entropy-regularised transport: row sums 1, column sums tokens / experts.

    In the log domain, `iterations` times: columns, `g_e = log(T/E) - logsumexp_t(L_te + f_t)`, then rows,
    `f_t = -logsumexp_e(L_te + g_e)`; the plan is `exp(L + f + g)`. With a `tolerance`, a group keeps the plan of the
    first iteration after which `max_e |column sum - T/E| <= tolerance`; the work done stays the same.

    logits: (groups, tokens, experts), not softmaxed; returns the same shape. Differentiable through the iterations.
    Raises ConfigError for `iterations < 1` or `tolerance <= 0`.

    Source: Routers, eq. (8). Section 6.
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
