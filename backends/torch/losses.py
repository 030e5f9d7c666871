"""Auxiliary losses and routing metrics: means over the groups, unweighted, in float32 or better."""

import math
from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.rows import gather_rows, sum_rows
from moespec.backends.torch.selection import top_indices
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
    threshold = noisy_logits.gather(2, top_indices(noisy_logits, choices)[:, :, -1:].long())
    # Where a probability is below the normal numbers, the error function is slow.
    excess = ((threshold - logits) / (noise_std * math.sqrt(2.0))).clamp_max(26.0 if dtype == torch.float64 else 9.0)
    passes = 0.5 * torch.erfc(excess)
    return squared_variation(passes.sum(dim=1))


def balance_loss(scores: Tensor) -> Tensor:
    """The mean over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    scores = widen(scores)
    experts = scores.shape[2]
    best = top_indices(scores, 1) == torch.arange(experts, device=scores.device, dtype=torch.int32)
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
        load, served, surprise = _of_slots(routing)
    else:
        dense: Any = routing
        dispatch = widen(dense.dispatch.detach())
        load = dispatch.sum(dim=(1, 3)) / dispatch.shape[1]
        served = (dispatch > 0).flatten(2).any(dim=2)
        mass = widen(dense.combine.detach()).sum(dim=3)
        surprise = _surprise(mass, mass.sum(dim=2, keepdim=True)).sum(dim=2)
    coverage = served.to(load.dtype).mean()
    entropy = surprise.sum() / served.numel()
    return {"load": load.mean(dim=0), "coverage": coverage, "dropped": 1.0 - coverage, "entropy": entropy}


def _of_slots(routing: SlotRouting) -> tuple[Tensor, Tensor, Tensor]:
    """The load (groups, experts), which tokens are served (groups * tokens,), and the surprise of each slot."""
    token, weight, _, tokens = routing
    count = token.shape[0] * tokens
    group = torch.arange(token.shape[0], device=token.device)[:, None, None]
    index = torch.where(token < tokens, token + tokens * group, count).reshape(-1)
    filled, mass = (index < count).to(weight.dtype), weight.detach().reshape(-1)
    sums = sum_rows(torch.stack([filled, mass], dim=1), index, count)
    served, total = sums.split(1, dim=1)
    load = filled.reshape(token.shape).sum(dim=2) / tokens
    return load, served > 0, _surprise(mass, gather_rows(total, index).squeeze(1))


def _surprise(mass: Tensor, total: Tensor) -> Tensor:
    """Of a share `m = mass / total`, what it adds to the entropy in nats: `-m log m`; 0 where there is no total."""
    share = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0).clamp_min(0)
    surprise: Tensor = -torch.special.xlogy(share, share)
    return surprise
