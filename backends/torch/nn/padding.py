"""Routes groups without their padding. Groups with equal token counts are computed together."""

from collections.abc import Callable

import torch
from torch import Tensor

from moespec.spec.checks import check_mask
from moespec.spec.errors import ContractError
from moespec.spec.routing import RouterOutput

__all__ = ["without_padding"]

Layer = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, RouterOutput]]


def without_padding(
    layer: Layer, tokens: Tensor, needed: dict[str, Tensor], mask: Tensor
) -> tuple[Tensor, RouterOutput]:
    """Applies `layer` to tokens (groups, tokens, width) and to the arrays `needed` (groups, tokens, ...), only where
    `mask` (groups, tokens) is true. Returns the output (0 for padding), and the means of losses and metrics over the
    groups that have tokens.

    The token counts are read on the host. Raises ContractError if no group has a token.
    """
    groups, count, width = tokens.shape
    check_mask("mask", mask, (groups, count), "token")
    y, parts, weights = torch.zeros_like(tokens), [], []
    present = mask.sum(dim=1)
    for size in sorted(set(present.tolist())):
        if size:
            chosen = mask & (present == size)[:, None]
            cut = {name: each[chosen].reshape(-1, size, *each.shape[2:]) for name, each in needed.items()}
            rows, output = layer(tokens[chosen].reshape(-1, size, width), cut)
            y = y.masked_scatter(chosen[:, :, None], rows)
            parts.append(output)
            weights.append(len(rows))
    if not parts:
        raise ContractError(f"mask: expected at least one token, but all {groups * count} are masked")

    def mean(of: Callable[[RouterOutput], dict[str, Tensor]]) -> dict[str, Tensor]:
        weighted = [
            {name: value * weight for name, value in of(part).items()}
            for part, weight in zip(parts, weights, strict=True)
        ]
        return {
            name: torch.stack([values[name] for values in weighted]).sum(dim=0) / sum(weights) for name in weighted[0]
        }

    return y, RouterOutput(None, mean(lambda part: part.losses), mean(lambda part: part.metrics))
