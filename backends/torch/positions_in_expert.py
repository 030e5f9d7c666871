"""Positions of requests in the queues of experts."""

import torch
from torch import Tensor

from moespec.backends.torch.gathers import invert_index

ONE_HOT_EXPERTS = 32
"""The maximum number of experts for which a cumulative sum of one-hot rows counts requests. For more experts, a sort is faster."""


def positions(requests: Tensor, experts: int) -> Tensor:
    """For each request, counts the earlier requests for the same expert in the same group.

    Args:
        requests: (groups, requests) int32, the requested experts, in order of priority.
        experts: number of experts.

    Returns:
        (groups, requests) int32.
    """
    return count_positions(requests, experts) if experts <= ONE_HOT_EXPERTS else sort_positions(requests, experts)


def count_positions(requests: Tensor, experts: int) -> Tensor:
    """Computes `positions` with a cumulative sum of one-hot rows."""
    asked = requests[:, :, None] == torch.arange(experts, device=requests.device, dtype=requests.dtype)
    counts = asked.cumsum(dim=1, dtype=torch.int32)
    return torch.where(asked, counts - 1, 0).sum(dim=2, dtype=torch.int32)


def sort_positions(requests: Tensor, experts: int) -> Tensor:
    """Computes `positions` with a stable sort of the expert numbers."""
    ordered, order = torch.sort(requests, dim=1, stable=True)
    requested = torch.arange(experts + 1, device=requests.device, dtype=requests.dtype)  # the last one is "no expert"
    first = torch.searchsorted(ordered, requested.expand(requests.shape[0], -1).contiguous())
    rank = torch.arange(requests.shape[1], device=requests.device) - first.gather(1, ordered.long())
    return rank.gather(1, invert_index(order, requests.shape[1]).long()).int()
