"""The largest scores of a row, in the order of a stable sort: the basis of every choice of experts or tokens."""

import torch
from torch import Tensor

from moespec.backends.torch.operators import mapped, operator


def top_indices(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest entries along the last axis, int32: descending, the lower index among equals.

    NaN is larger than any number and equal to NaN, 0.0 and -0.0 are equal, and -infinity is an ordinary entry.
    """
    indices: Tensor = _top_indices(scores.detach(), count)
    return indices


@mapped
@operator
def _top_indices(scores: Tensor, count: int) -> Tensor:
    """Computes `top_indices`: by a maximum for one entry, by a sort for more than half of the entries, else by `torch.topk` on a CPU.

    `torch.topk` does not define the order of equal scores. The few rows with equal scores are sorted separately. A GPU
    would have to wait for their number, so it sorts all rows.
    """
    if count == 1:
        return scores.max(dim=-1, keepdim=True).indices.int().contiguous()  # the first of the largest
    if scores.device.type != "cpu" or 2 * count > scores.shape[-1]:
        return _sorted(scores)[..., :count].int().contiguous()
    best, index = torch.topk(scores.contiguous(), count + 1, dim=-1)
    index = index[..., :count].int().contiguous()
    unclear = ~(best[..., :-1] > best[..., 1:]).all(dim=-1)
    if unclear.any():
        index[unclear] = _sorted(scores[unclear])[:, :count].int()
    return index


@_top_indices.register_fake
def _(scores: Tensor, count: int) -> Tensor:
    return scores.new_empty((*scores.shape[:-1], count), dtype=torch.int32)


def _sorted(scores: Tensor) -> Tensor:
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices
