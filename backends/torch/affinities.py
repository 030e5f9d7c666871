"""Affinities: from logits to the scores by which tokens or experts choose.

Every array has a leading axis of groups (G), which are independent. All is computed in float32, or in float64 if an
input is float64, also under autocast.
"""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.products import product
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

AXES = "groups tokens experts"


def router_logits(tokens: Tensor, kernel: Tensor) -> Tensor:
    """tokens (G, T, D), kernel (D, E) -> (G, T, E), also under autocast in full precision."""
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[2], "the width of tokens")
    return product(tokens, kernel)


def add_gating_noise(logits: Tensor, noise: Tensor | None, *, multiplier: float = 1.0) -> Tensor:
    """logits and noise (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    check_non_negative("multiplier", multiplier)
    if noise is None:
        return logits
    check_scores("noise", noise, AXES)
    check_same_shape("noise", noise, "logits", logits)
    dtype = wide(logits.dtype, noise.dtype)
    return logits.to(dtype) + (multiplier / logits.shape[2]) * noise.to(dtype)


def router_jitter(tokens: Tensor, noise: Tensor | None, *, epsilon: float = 0.01) -> Tensor:
    """tokens and noise (G, T, D) -> (G, T, D)."""
    check_scores("tokens", tokens, "groups tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return widen(tokens)
    check_scores("noise", noise, "groups tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    dtype = wide(tokens.dtype, noise.dtype)
    return tokens.to(dtype) * (1 + epsilon * noise.to(dtype))


def softmax_affinity(logits: Tensor) -> Tensor:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    return torch.softmax(widen(logits), dim=2)


def sigmoid_affinity(logits: Tensor) -> Tensor:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    return torch.sigmoid(widen(logits))


def sinkhorn_affinity(logits: Tensor, *, iterations: int = 20, tolerance: float | None = None) -> Tensor:
    """logits (G, T, E) -> (G, T, E).

    The number of iterations is fixed: with a `tolerance`, a group that has reached it keeps its plan while the others go on.
    Differentiable through the iterations.
    """
    check_scores("logits", logits, AXES)
    check_at_least("iterations", iterations, 1)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    logits = widen(logits)
    groups, tokens, experts = logits.shape
    column_sum = logits.new_full((), tokens) / experts
    token_potential = logits.new_zeros(groups, tokens, 1)
    expert_potential = logits.new_zeros(groups, 1, experts)
    finished = torch.zeros(groups, 1, 1, dtype=torch.bool, device=logits.device)
    for _ in range(iterations):
        columns = column_sum.log() - torch.logsumexp(logits + token_potential, dim=1, keepdim=True)
        rows = -torch.logsumexp(logits + columns, dim=2, keepdim=True)
        if tolerance is None:
            expert_potential, token_potential = columns, rows
        else:
            expert_potential = torch.where(finished, expert_potential, columns)
            token_potential = torch.where(finished, token_potential, rows)
            sums = torch.exp(logits + token_potential + expert_potential).sum(dim=1, keepdim=True)
            finished = (sums - column_sum).abs().amax(dim=2, keepdim=True) <= tolerance
    return torch.exp(logits + token_potential + expert_potential)
