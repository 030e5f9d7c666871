"""Selects the largest scores of a row in the order of a stable sort. Every choice of experts or tokens uses this selection."""

import torch
from torch import Tensor

from moespec.backends.torch.operators import direct, mapped, operator


def top_indices(scores: Tensor, count: int) -> Tensor:
    """Returns int32 indices of the `count` largest entries along the last axis, in descending order.

    Among equal entries, the lower index comes first. NaN is larger than any number and equal to NaN; 0.0 and -0.0 are equal.
    """
    indices: Tensor = _select(scores.detach(), count)
    return indices


@mapped
@operator
def _top_indices(scores: Tensor, count: int) -> Tensor:
    """Computes `top_indices` with `max` for one entry, with `torch.topk` on a CPU for up to half of the entries, else with a sort.

    `torch.topk` does not define the order of equal scores, so the few rows with equal scores are sorted
    separately. With a GPU, the host would have to wait for the number of these rows, so a GPU sorts all rows.
    """
    if count == 1:
        return scores.max(dim=-1, keepdim=True).indices.int().contiguous()  # `max` returns the first largest entry
    if scores.device.type != "cpu" or 2 * count > scores.shape[-1]:
        return _sorted(scores)[..., :count].int().contiguous()
    best, index = torch.topk(scores.contiguous(), count + 1, dim=-1)
    index = index[..., :count].int().contiguous()
    falls = best[..., :-1] > best[..., 1:]
    if not falls.all():
        unclear = ~falls.all(dim=-1)
        index[unclear] = _sorted(scores[unclear])[:, :count].int()
    return index


@_top_indices.register_fake
def _(scores: Tensor, count: int) -> Tensor:
    return scores.new_empty((*scores.shape[:-1], count), dtype=torch.int32)


_select = direct(_top_indices)


def _sorted(scores: Tensor) -> Tensor:
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices
