"""Statistics of routings and slots, without gradient.

Shapes: G groups, T tokens, E experts, C capacity, D width.
"""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.once.soft_moe import inverse_norm
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.arrays import full_precision, widen
from moespec.backends.torch.rows import gather_rows, put_scores, sum_rows
from moespec.backends.torch.slots import SlotRouting, SoftRouting
from moespec.spec.checks import check_scores
from moespec.spec.routing import Routing

__all__ = [
    "collapse_metrics",
    "cumulative_dispatch",
    "experts_per_token",
    "routing_metrics",
    "slot_similarity",
    "summed_dispatch",
]

AnyRouting = SlotRouting | SoftRouting | Routing


def routing_metrics(routing: AnyRouting) -> dict[str, Tensor]:
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


def collapse_metrics(routing: AnyRouting) -> dict[str, Tensor]:
    """Each the mean over the groups: the scalars dispatch_max and combine_max."""
    if isinstance(routing, SlotRouting):
        weight = put_scores(routing.weight.detach(), routing.token, routing.tokens)
        return {"dispatch_max": _filled(routing).mean(), "combine_max": weight.amax(dim=2).mean()}
    dense: Any = routing
    dispatch, combine = widen(dense.dispatch.detach()), widen(dense.combine.detach())
    return {"dispatch_max": dispatch.amax(dim=1).mean(), "combine_max": combine.amax(dim=(2, 3)).mean()}


def summed_dispatch(routing: AnyRouting) -> Tensor:
    """(G, T)."""
    if isinstance(routing, SlotRouting):
        total: Tensor = put_scores(_filled(routing), routing.token, routing.tokens).sum(dim=2)
        return total
    dense: Any = routing
    return widen(dense.dispatch.detach()).sum(dim=(2, 3))


def cumulative_dispatch(routing: AnyRouting) -> Tensor:
    """(G, T)."""
    if isinstance(routing, SlotRouting):
        return _filled(routing).mean(dim=(1, 2))[:, None].repeat(1, routing.tokens)
    dense: Any = routing
    descending = torch.sort(widen(dense.dispatch.detach()), dim=1, descending=True).values
    return descending.cumsum(dim=1).mean(dim=(2, 3))


def experts_per_token(routing: AnyRouting) -> dict[str, Tensor]:
    """Each the mean over the groups, scalars."""
    if isinstance(routing, SlotRouting):
        count = summed_dispatch(routing)
    else:
        dense: Any = routing
        dispatch = widen(dense.dispatch.detach())
        count = (dispatch > 0).any(dim=3).to(dispatch.dtype).sum(dim=2)
    shares = {f"at_least_{n}": (count >= n).to(count.dtype).mean() for n in (1, 2, 4)}
    return {"experts_min": count.amin(dim=1).mean(), "experts_max": count.amax(dim=1).mean(), **shares}


def slot_similarity(slots: Tensor) -> Tensor:
    """slots (D, E, C) -> (E * C, E * C)."""
    check_scores("slots", slots, "width experts capacity")
    phi = widen(slots.detach()).flatten(1)
    unit = phi * inverse_norm(xp, phi, 0, "paper")
    with full_precision(unit):
        similarity: Tensor = unit.mT @ unit
    return similarity


def _filled(routing: SlotRouting) -> Tensor:
    """1 for a slot that holds a token, else 0: (G, E, C)."""
    return (routing.token < routing.tokens).to(routing.weight.dtype)
