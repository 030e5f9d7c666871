"""Affinities, which turn logits into scores: elementwise functions, softmax and Sinkhorn. `transport.py` computes optimal transport."""

import math

from moespec.backends.common.namespace import Array, Namespace
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
    "cap_logits",
    "gshard_sample",
    "router_jitter",
    "router_logits",
    "scaled_gates",
    "sigmoid_affinity",
    "sinkhorn_affinity",
    "softmax_affinity",
    "sqrt_softplus_affinity",
]

AXES = "groups tokens experts"


def router_logits(xp: Namespace[Array], tokens: Array, kernel: Array, bias: Array | None = None) -> Array:
    """tokens (G, T, D), kernel (D, E), bias (E,) -> (G, T, E), at the highest precision of the device, even under autocast."""
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[2], "the width of tokens")
    if bias is None:
        return xp.product(tokens, kernel)
    check_scores("bias", bias, "experts")
    check_size("bias", bias, 0, kernel.shape[1], "the experts of kernel")
    logits, bias = xp.promote_all(xp.product(tokens, kernel), bias)
    return logits + bias


def cap_logits(xp: Namespace[Array], logits: Array, *, cap: float) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    cap = check_positive("cap", cap)
    return cap * xp.tanh(xp.promote(logits) / cap)


def add_gating_noise(xp: Namespace[Array], logits: Array, noise: Array | None, *, multiplier: float = 1.0) -> Array:
    """logits and noise (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    check_non_negative("multiplier", multiplier)
    if noise is None:
        return xp.promote(logits)
    check_scores("noise", noise, AXES)
    check_same_shape("noise", noise, "logits", logits)
    logits, noise = xp.promote_all(logits, noise)
    return logits + (multiplier / logits.shape[2]) * noise


def router_jitter(xp: Namespace[Array], tokens: Array, noise: Array | None, *, epsilon: float = 0.01) -> Array:
    """tokens and noise (G, T, D) -> (G, T, D)."""
    check_scores("tokens", tokens, "groups tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return xp.promote(tokens)
    check_scores("noise", noise, "groups tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    tokens, noise = xp.promote_all(tokens, noise)
    return tokens * (1 + epsilon * noise)


def gshard_sample(xp: Namespace[Array], logits: Array, noise: Array) -> Array:
    """logits and noise (G, T, E) -> (G, T, E). The function does not check that the noise lies between 0 and 1."""
    check_scores("logits", logits, AXES)
    check_scores("noise", noise, AXES)
    check_same_shape("noise", noise, "logits", logits)
    logits, noise = xp.promote_all(xp.stop_gradient(logits), xp.stop_gradient(noise))
    sampled = logits - xp.log(-xp.log(noise))
    first = xp.argmax(logits) == xp.indices(logits.shape[2], logits)
    return xp.where(first, xp.max(sampled, 2, keepdims=True) + 1, sampled)


def softmax_affinity(xp: Namespace[Array], logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    return xp.softmax(xp.promote(logits), 2)


def sigmoid_affinity(xp: Namespace[Array], logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    return xp.sigmoid(xp.promote(logits))


def sqrt_softplus_affinity(xp: Namespace[Array], logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E). Where the softplus underflows to 0, the gradient is 0."""
    check_scores("logits", logits, AXES)
    softplus = xp.softplus(xp.promote(logits))
    return xp.where(softplus > 0, xp.sqrt(xp.where(softplus > 0, softplus, 1.0)), 0.0)


def scaled_gates(xp: Namespace[Array], gates: Array, *, scale: float) -> Array:
    """gates (G, T, E) -> (G, T, E)."""
    check_scores("gates", gates, AXES)
    return xp.promote(gates) * check_positive("scale", scale)


def sinkhorn_affinity(
    xp: Namespace[Array], logits: Array, *, iterations: int = 20, tolerance: float | None = None
) -> Array:
    """logits (G, T, E) -> (G, T, E).

    The number of iterations is fixed. If `tolerance` is set, the plan of a group no longer changes once the error of the
    group is at most `tolerance`. Gradients flow through the iterations.
    """
    check_scores("logits", logits, AXES)
    iterations = check_at_least("iterations", iterations, 1)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    logits = xp.promote(logits)
    return (
        xp.whole(sinkhorn_plan)(xp, logits, iterations)
        if tolerance is None
        else sinkhorn_plan(xp, logits, iterations, tolerance)
    )


def sinkhorn_plan(xp: Namespace[Array], logits: Array, iterations: int, tolerance: float | None = None) -> Array:
    """The Sinkhorn plan (G, T, E) of logits in float32 or better."""
    column_mass = logits.shape[1] / logits.shape[2]

    # The softmax of `logits + column` is the plan after the update of the rows. Its column sums give the next update.
    def update(_: int, column: Array) -> Array:
        sums = xp.sum(xp.softmax(logits + column, 2), 1, keepdims=True)
        new_column = column + xp.log(column_mass / sums)
        if tolerance is None:
            return new_column
        return xp.where(xp.max(xp.abs(sums - column_mass), 2, keepdims=True) <= tolerance, column, new_column)

    first = math.log(column_mass) - xp.logsumexp(logits, 1, keepdims=True)
    return xp.softmax(logits + xp.loop(iterations - 1, update, first), 2)
