"""Computes the routing metrics of every step, without gradients. Shapes: G groups, T tokens, E experts."""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.gathers import gather_rows, sum_rows
from moespec.backends.torch.slots import SlotRouting, SoftRouting
from moespec.spec.routing import Routing

__all__ = ["routing_metrics"]


def routing_metrics(routing: SlotRouting | SoftRouting | Routing) -> dict[str, Tensor]:
    """Returns the load (E,) and the scalars coverage, dropped and entropy, averaged over the groups."""
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
    """Returns the load (groups, experts), a mask of tokens with a slot (groups * tokens,), and the entropy contribution of each slot."""
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
    """Returns the entropy, in nats, that a share `m = mass / total` of a token's weight adds: `-m log m`, or 0 if `total` is 0."""
    share = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0).clamp_min(0)
    surprise: Tensor = -torch.special.xlogy(share, share)
    return surprise
