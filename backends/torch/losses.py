"""Auxiliary losses and routing metrics: means over the groups, unweighted, in float32 or better."""

import math
from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.allocations import top_experts
from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.rows import put_scores
from moespec.backends.torch.slots import SlotRouting, SoftRouting
from moespec.spec.checks import check_choices, check_positive, check_same_shape, check_scores
from moespec.spec.routing import Routing

__all__ = [
    "balance_loss",
    "importance_loss",
    "load_loss",
    "routing_metrics",
    "z_loss",
]

AXES = "groups tokens experts"


def importance_loss(scores: Tensor) -> Tensor:
    """The mean over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    return squared_variation(widen(scores).sum(dim=1))


def load_loss(logits: Tensor, noisy_logits: Tensor, *, choices: int, noise_std: float) -> Tensor:
    """The mean over the groups: logits and noisy_logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, AXES)
    check_scores("noisy_logits", noisy_logits, AXES)
    check_same_shape("noisy_logits", noisy_logits, "logits", logits)
    choices = check_choices(choices, logits.shape[2])
    noise_std = check_positive("noise_std", noise_std)
    dtype = wide(logits.dtype, noisy_logits.dtype)
    logits, noisy_logits = logits.to(dtype), noisy_logits.to(dtype)
    threshold = torch.sort(noisy_logits, dim=2, descending=True, stable=True).values[:, :, choices - 1 : choices]
    passes = 0.5 * torch.erfc((threshold - logits) / (noise_std * math.sqrt(2.0)))
    return squared_variation(passes.sum(dim=1))


def balance_loss(scores: Tensor) -> Tensor:
    """The mean over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    scores = widen(scores)
    experts = scores.shape[2]
    best = top_experts(scores, 1) == torch.arange(experts, device=scores.device, dtype=torch.int32)
    share = best.to(scores.dtype).mean(dim=1)
    return experts * (share * scores.mean(dim=1)).sum(dim=1).mean()


def z_loss(logits: Tensor) -> Tensor:
    """The mean over the groups: logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, AXES)
    return torch.logsumexp(widen(logits), dim=2).square().mean()


def squared_variation(values: Tensor) -> Tensor:
    """Variance over squared mean (no root, so the gradient at equal values is 0), of (groups, experts)."""
    mean = values.mean(dim=1, keepdim=True)
    return ((values - mean).square().mean(dim=1) / mean.square().squeeze(1)).mean()


def routing_metrics(routing: SlotRouting | SoftRouting | Routing) -> dict[str, Tensor]:
    """Each the mean over the groups: load (E,), and the scalars coverage, dropped and entropy."""
    if isinstance(routing, SlotRouting):
        filled = (routing.token < routing.tokens).to(routing.weight.dtype)
        load = filled.sum(dim=2) / routing.tokens
        served = (put_scores(filled, routing.token, routing.tokens) > 0).any(dim=2)
        mass = put_scores(routing.weight.detach(), routing.token, routing.tokens)
    else:
        dense: Any = routing
        dispatch = widen(dense.dispatch.detach())
        load = dispatch.sum(dim=(1, 3)) / dispatch.shape[1]
        served = (dispatch > 0).flatten(2).any(dim=2)
        mass = widen(dense.combine.detach()).sum(dim=3)
    coverage = served.to(mass.dtype).mean()
    return {"load": load.mean(dim=0), "coverage": coverage, "dropped": 1.0 - coverage, "entropy": _entropy(mass)}


def _entropy(mass: Tensor) -> Tensor:
    """Mean entropy in nats of the rows of `mass` (groups, tokens, experts), normalised; 0 for a row without mass."""
    total = mass.sum(dim=2, keepdim=True)
    share = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0).clamp_min(0)
    entropy: Tensor = -torch.special.xlogy(share, share).sum(dim=2)
    return entropy.mean()
