"""The operations that models need around the routers: experts, norms, attention, patches.

Products run in the dtype of their input, and all functions except `linear` cast parameters to this dtype. Norms run in float32 or better.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moespec.backends.common.network import (
    bounded,
    check_activation,
    check_attention,
    expert_weights,
    patch_grid,
    perceptron,
    second_factor,
)
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.arrays import wide
from moespec.backends.torch.gathers import gather_rows
from moespec.backends.torch.operators import on_gpu
from moespec.spec.algorithms.convolution import check_kernel
from moespec.spec.algorithms.sparse_mlp import check_rescale
from moespec.spec.checks import check_at_least, check_integers, check_option, check_positive, check_scores, check_size

__all__ = [
    "attention",
    "convolution",
    "embedding",
    "expert_mlp",
    "gelu",
    "layer_norm",
    "linear",
    "patch_embed",
    "rescale",
]


def gelu(x: Tensor, *, form: str = "tanh") -> Tensor:
    """x (...) -> (...)."""
    check_option("form", form, ("tanh", "erf"))
    check_scores("x", x, "...")
    return F.gelu(x, approximate="tanh" if form == "tanh" else "none")


def expert_mlp(inputs: Tensor, params: Mapping[str, Tensor], *, gelu: str = "tanh", activation: str = "gelu") -> Tensor:
    """inputs (G, E, C, D), params as in the specification -> (G, E, C, D'), in the dtype of `inputs` or of autocast."""
    check_scores("inputs", inputs, "groups experts capacity width")
    check_activation(gelu, activation)
    groups, experts, capacity, width = inputs.shape
    weights = expert_weights(xp, params, inputs.dtype, experts=experts, width=width)
    rows = inputs.transpose(0, 1).reshape(experts, groups * capacity, width)
    of: Any = activate(gelu, activation), second_factor(xp, activation)
    outputs: Tensor = perceptron(rows, weights, linear_of_experts, *of)
    return outputs.reshape(experts, groups, capacity, -1).transpose(0, 1)


def linear_of_experts(rows: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(rows, kernel.to(rows.dtype))
    if on_gpu(rows) and rows.dtype == torch.bfloat16:  # baddbmm would copy the bias to every row
        return torch.bmm(rows, kernel.to(rows.dtype)) + bias[:, None].to(rows.dtype)
    return torch.baddbmm(bias[:, None].to(rows.dtype), rows, kernel.to(rows.dtype))


def activate(form: str, activation: str) -> Callable[[Tensor], Tensor]:
    """Returns the experts' activation function, where `form` is the form of GELU."""
    known: dict[str, Any] = {"silu": F.silu, "quick_gelu": quick_gelu, **bounded(xp, activation)}
    found: Callable[[Tensor], Tensor] = known.get(activation, partial(gelu, form=form))
    return found


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-6) -> Tensor:
    """x (..., D), scale and bias (D,) -> (..., D), computed in float32 or better and returned in the dtype of `x`."""
    check_scores("x", x, "... width")
    check_positive("epsilon", epsilon)
    for name, values in {"scale": scale, "bias": bias}.items():
        if values is not None:
            check_scores(name, values, "width")
            check_size(name, values, 0, x.shape[-1], "the last axis of x")
    dtype = wide(x.dtype)
    bias = None if bias is None else bias.to(dtype)
    return F.layer_norm(x.to(dtype), x.shape[-1:], scale.to(dtype), bias, epsilon).to(x.dtype)


def linear(x: Tensor, kernel: Tensor, bias: Tensor | None = None, *, axes: int = 1) -> Tensor:
    """`x kernel + bias` as one matrix product: x (..., *A), kernel (*A, *B), bias (*B) -> (..., *B), where A has `axes` axes."""
    inner = math.prod(kernel.shape[:axes])
    flat = x.reshape(-1, inner) @ kernel.reshape(inner, -1)
    y = flat.reshape(*x.shape[: x.ndim - axes], *kernel.shape[axes:])
    return y if bias is None else y + bias


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """query (N, Q, heads, dim), key and value (N, S, heads, dim) -> the shape of `query`. Uses torch's fused kernel."""
    check_attention(query, key, value, causal=causal)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2)


def patch_embed(images: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """images (N, height, width, channels), kernel (patch, patch, channels, D), bias (D,) -> (N, S, D).

    The result has the dtype of `images`, or the dtype of autocast.
    """
    rows, columns = patch_grid(images, kernel, bias)
    count, patch, channels, features = images.shape[0], *kernel.shape[1:]
    bias = kernel.new_zeros(features) if bias is None else bias
    pixels = images.reshape(count, rows, patch, columns, patch, channels).permute(0, 1, 3, 2, 4, 5)
    flat = pixels.reshape(count, rows * columns, patch * patch * channels)
    weights = kernel.reshape(-1, features).to(images.dtype)
    return F.linear(flat, weights.mT, bias.to(images.dtype))


def rescale(x: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """x (N, S, C) -> (N, S', C'), in the dtype of `x`."""
    check_scores("x", x, "images tokens channels")
    check_rescale(params, x.shape[1], x.shape[2])
    maps = {name: value.to(x.dtype) for name, value in params.items()}
    if "token_kernel" in maps:
        x = maps["token_kernel"].mT @ x + maps["token_bias"][:, None]
    if "channel_kernel" in maps:
        x = x @ maps["channel_kernel"] + maps["channel_bias"]
    return x


def convolution(images: Tensor, kernel: Tensor, bias: Tensor, *, stride: int = 1) -> Tensor:
    """images (N, H, W, channels), kernel (size, size, channels, features), bias (features,) -> (N, H', W', features).

    The result has the dtype of `images` or of autocast. A single matrix product over squares of pixels is more precise
    than torch's convolution on a GPU.
    """
    check_scores("images", images, "images height width channels")
    check_scores("kernel", kernel, "size size channels features")
    check_scores("bias", bias, "features")
    stride = check_at_least("stride", stride, 1)
    padding = check_kernel(kernel, images.shape[3], bias)
    _, height, width, _ = images.shape
    padded = F.pad(images, (0, 0, padding, padding, padding, padding))
    offsets = range(kernel.shape[0])
    squares = torch.cat(
        [padded[:, i : i + height : stride, j : j + width : stride] for i in offsets for j in offsets], dim=3
    )
    weights = kernel.reshape(-1, kernel.shape[3]).to(images.dtype)
    return F.linear(squares, weights.mT, bias.to(images.dtype))


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids (N, S), table (V, D) -> (N, S, D). The gradient of the table is summed in a fixed order.

    Ids are not checked: an id outside the table causes a device error or an undefined result.
    """
    check_integers("ids", ids, "groups tokens")
    check_scores("table", table, "ids width")
    rows: Tensor = gather_rows(table, ids.reshape(-1).long())
    return rows.reshape(*ids.shape, table.shape[1])
