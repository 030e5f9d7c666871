"""Functions of torch that programs use to compute what moespec specifies."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moespec.conformance.peers.adapters.on_torch import SlotRouting, shared

__getattr__ = shared


def router_logits(tokens: Tensor, kernel: Tensor) -> Tensor:
    """`torch.nn.functional.linear` without a bias."""
    return F.linear(tokens, kernel.T)


def softmax_affinity(logits: Tensor) -> Tensor:
    """`torch.softmax` over experts."""
    return torch.softmax(logits, dim=-1)


def batch_priority(scores: Tensor, *, by: str = "max", choices: int = 1) -> Tensor:
    """`torch.argsort(descending=True)` of each token's largest score, or of the sum of the token's scores from `torch.topk`."""
    priority = scores.amax(dim=-1) if by == "max" else scores.topk(choices, dim=-1).values.sum(dim=-1)
    return priority.argsort(dim=-1, descending=True)


def expert_choice(
    scores: Tensor, *, capacity: int, combine_scores: Tensor | None = None, drop_zero: bool = False
) -> Any:
    """`torch.topk` over the tokens, for each expert."""
    if drop_zero:
        raise NotImplementedError("topk leaves no slot empty")
    token = scores.mT.topk(capacity, dim=-1).indices
    weight = (scores if combine_scores is None else combine_scores).mT.gather(-1, token)
    return SlotRouting(token.int(), weight, None, scores.shape[1])


def gelu(x: Tensor, **options: Any) -> Tensor:
    """`torch.nn.functional.gelu`."""
    if "form" in options:
        options["approximate"] = {"tanh": "tanh", "erf": "none"}[options.pop("form")]
    return F.gelu(x, **options)


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    if "epsilon" in options:
        options["eps"] = options.pop("epsilon")
    return F.layer_norm(x, scale.shape, scale, bias, **options)


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`."""
    query, key, value = (array.transpose(1, 2) for array in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2)


def batch_norm(x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """`torch.nn.functional.batch_norm` in training, without running statistics."""
    return F.batch_norm(x, None, None, training=True, eps=epsilon)


def patch_embed(images: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.conv2d` with the patch size as its stride."""
    patches = F.conv2d(images.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), bias, stride=tuple(kernel.shape[:2]))
    return patches.flatten(2).mT


def softmax_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """`torch.nn.functional.cross_entropy` for each row."""
    return F.cross_entropy(logits, targets, reduction="none")


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """`torch.nn.functional.binary_cross_entropy_with_logits`, summed over classes."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=-1)
