"""Soft routing: every slot is a convex combination of all tokens, and every token of all slot outputs."""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide
from moespec.backends.torch.products import product
from moespec.backends.torch.slots import SoftRouting
from moespec.spec.checks import check_scores, check_size
from moespec.spec.soft_moe import check_forms, check_one_slot_each

__all__ = ["soft_routing"]

EPSILON = 1e-6


def soft_routing(
    tokens: Tensor,
    slots: Tensor,
    *,
    scale: Tensor | float = 1.0,
    normalize: bool = True,
    norm_form: str = "paper",
    dispatch: str = "soft",
    combine: str = "soft",
) -> SoftRouting:
    """tokens (G, T, D), slots (D, E, C) -> SoftRouting, in float32 or better, also under autocast.

    The norms scale the rows and columns of one product `x phi`.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("slots", slots, "width experts capacity")
    check_size("slots", slots, 0, tokens.shape[2], "the width of tokens")
    if not isinstance(scale, int | float):
        check_scores("scale", scale, "")
    check_forms(norm_form, dispatch, combine)
    dtype = wide(tokens.dtype, slots.dtype)
    shape = (tokens.shape[0], tokens.shape[1], slots.shape[1], slots.shape[2])
    if dispatch == "identity":
        weights = _identity(shape, dtype, tokens.device)
        return SoftRouting(weights, weights)

    # Scores.
    x, phi = tokens.to(dtype), slots.to(dtype).flatten(1)
    logits = product(tokens, phi, x)
    if normalize:
        columns = scale * inverse_norm(phi, 0, norm_form)
        logits = logits * inverse_norm(x, 2, norm_form) * columns

    # Dispatch and combine; nothing is selected, and every slot is full.
    slot_count = shape[2] * shape[3]
    dispatched = torch.softmax(logits, dim=1) if dispatch == "soft" else torch.full_like(logits, 1 / shape[1])
    combined = torch.softmax(logits, dim=2) if combine == "soft" else torch.full_like(logits, 1 / slot_count)
    return SoftRouting(dispatched.reshape(shape), combined.reshape(shape))


def inverse_norm(x: Tensor, axis: int, form: str) -> Tensor:
    """What `x` is multiplied by along `axis` to be normalised. The norm of a zero vector counts as a constant."""
    squares = (x * x).sum(dim=axis, keepdim=True)
    if form == "rsqrt":
        return torch.rsqrt(squares + EPSILON)
    zero = squares == 0
    norm = torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())
    return 1 / (norm + EPSILON)


def _identity(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    groups, tokens, experts, capacity = shape
    check_one_slot_each(tokens, experts, capacity)
    dealt = torch.eye(tokens, dtype=dtype, device=device).reshape(1, tokens, capacity, experts)
    return dealt.mT.repeat(groups, 1, 1, 1)
