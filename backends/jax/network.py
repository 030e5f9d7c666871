"""The network operations that models need in addition to routers.

Shape comments: N rows or images, S sequence, G groups, E experts, C capacity, D width, H hidden.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.common.network import (
    bounded,
    check_activation,
    check_attention,
    expert_weights,
    patch_grid,
    perceptron,
    second_factor,
)
from moespec.backends.jax import namespace as xp
from moespec.backends.jax.arrays import Array, cast, wide
from moespec.backends.jax.explicit import by_groups
from moespec.spec.algorithms.convolution import check_kernel
from moespec.spec.algorithms.dropout import check_draws, threshold
from moespec.spec.algorithms.sparse_mlp import check_rescale
from moespec.spec.checks import (
    check_at_least,
    check_floating,
    check_option,
    check_positive,
    check_rank,
    check_scores,
    check_size,
)

__all__ = [
    "attention",
    "convolution",
    "dropout",
    "expert_mlp",
    "gelu",
    "layer_norm",
    "linear",
    "patch_embed",
    "rescale",
]


def gelu(x: Array, *, form: str = "tanh") -> Array:
    """x (...) -> (...)."""
    check_option("form", form, ("tanh", "erf"))
    check_scores("x", x, "...")
    return jax.nn.gelu(x, approximate=form == "tanh")


def layer_norm(x: Array, scale: Array, bias: Array | None = None, *, epsilon: float = 1e-6) -> Array:
    """x (..., D), scale and bias (D,) -> (..., D), computed in float32 or better and returned in the dtype of `x`."""
    check_scores("x", x, "... width")
    check_scores("scale", scale, "width")
    check_size("scale", scale, 0, x.shape[-1], "the last axis of x")
    check_positive("epsilon", epsilon)
    values = wide(x)
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    result = centred * lax.rsqrt(variance + epsilon) * wide(scale)
    if bias is not None:
        check_scores("bias", bias, "width")
        check_size("bias", bias, 0, x.shape[-1], "the last axis of x")
        result = result + wide(bias)
    return result.astype(x.dtype)


def linear(x: Array, kernel: Array, bias: Array | None = None, *, axes: int = 1) -> Array:
    """Computes `x kernel + bias`, where `axes` is the number of axes *A: x (..., *A), kernel (*A, *B), bias (*B) -> (..., *B).

    On a TPU, the axes are not joined, because joined axes require a copy if the sequence length is not a multiple of 8 or the head
    width is not a multiple of 128. On other devices, a single matrix product over joined axes is faster.
    """
    operands = (x, kernel) if bias is None else (x, kernel, bias)
    tpu, default = partial(_product, axes=axes), partial(_flat_product, axes=axes)
    y: Array = lax.platform_dependent(*operands, tpu=tpu, default=default)
    return y


def _product(x: Array, kernel: Array, *bias: Array, axes: int) -> Array:
    return sum(bias, start=jnp.tensordot(x, kernel, axes))


def _flat_product(x: Array, kernel: Array, *bias: Array, axes: int) -> Array:
    inner = math.prod(kernel.shape[:axes])
    outer = x.shape[: x.ndim - axes]
    # Joins and splits one axis at a time, as arrays with explicit mesh axes require.
    flat = x.reshape(*outer, inner).reshape(-1, inner) @ kernel.reshape(inner, -1)
    flat = sum((each.reshape(-1) for each in bias), start=flat)
    return flat.reshape(*outer, -1).reshape(*outer, *kernel.shape[axes:])


def attention(query: Array, key: Array, value: Array, *, causal: bool = False) -> Array:
    """query (N, Q, heads, dim), key and value (N, S, heads, dim) -> the shape of `query`."""
    check_attention(query, key, value, causal=causal)
    # With the heads before the sequence, both products are batched matrix products, and XLA does not transpose the logits.
    query, key, value = (jnp.swapaxes(array, 1, 2) for array in (query, key, value))
    exact = jnp.promote_types(query.dtype, jnp.float32)
    logits = jnp.einsum("nhqd,nhkd->nhqk", query, key, preferred_element_type=exact) / query.shape[3] ** 0.5
    if causal:
        logits = jnp.where(jnp.tri(logits.shape[2], dtype=bool), logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=3).astype(value.dtype)
    return jnp.swapaxes(jnp.einsum("nhqk,nhkd->nhqd", weights, value), 1, 2)


def patch_embed(images: Array, kernel: Array, bias: Array | None = None) -> Array:
    """images (N, height, width, channels), kernel (patch, patch, channels, D), bias (D,) -> (N, S, D)."""
    rows, columns = patch_grid(images, kernel, bias)
    count, size, channels = images.shape[0], kernel.shape[0], images.shape[3]
    bias = jnp.zeros(kernel.shape[3], kernel.dtype) if bias is None else bias
    patches = jnp.asarray(images).reshape(count, rows, size, columns, size, channels)
    embedded = jnp.einsum("nhpwqc,pqcd->nhwd", patches, kernel) + bias
    return embedded.reshape(count, -1, kernel.shape[3])


@by_groups({"inputs": "group", "params": "experts"})
def expert_mlp(inputs: Array, params: Mapping[str, Array], *, gelu: str = "tanh", activation: str = "gelu") -> Array:
    """inputs (G, E, C, D), params as in the specification -> (G, E, C, D'), in the dtype of `inputs`."""
    check_scores("inputs", inputs, "groups experts capacity width")
    check_activation(gelu, activation)
    groups, experts, capacity, width = inputs.shape
    weights = expert_weights(xp, params, inputs.dtype, experts=experts, width=width)  # type: ignore[misc]
    # Joins the rows of all groups for each expert, because XLA would otherwise transpose the hidden layer, which is wider than the inputs.
    rows = jnp.swapaxes(inputs, 0, 1).reshape(experts, groups * capacity, width)
    outputs = perceptron(rows, weights, _linear_of_experts, activate(gelu, activation), second_factor(xp, activation))
    return jnp.swapaxes(outputs.reshape(experts, groups, capacity, outputs.shape[2]), 0, 1)


def _linear_of_experts(rows: Array, kernel: Array, bias: Array | None) -> Array:
    y = jnp.einsum("erd,edh->erh", rows, kernel)
    return y if bias is None else y + bias[:, None]


def activate(form: str, activation: str) -> Callable[[Array], Array]:
    """The activation function of experts, where `form` is the form of GELU."""
    known = {"silu": jax.nn.silu, "quick_gelu": quick_gelu, **bounded(xp, activation)}  # type: ignore[misc]
    return known.get(activation, partial(gelu, form=form))


def quick_gelu(x: Array) -> Array:
    """CLIP's approximation of GELU."""
    return x * jax.nn.sigmoid(1.702 * x)


def rescale(x: Array, params: Mapping[str, Array]) -> Array:
    """x (N, S, C) -> (N, S', C'), in the dtype of `x`."""
    check_scores("x", x, "images tokens channels")
    check_rescale(params, x.shape[1], x.shape[2])
    maps = {name: cast(value, x.dtype) for name, value in params.items()}
    if "token_kernel" in maps:
        x = jnp.einsum("nsc,sz->nzc", x, maps["token_kernel"]) + maps["token_bias"][:, None]
    if "channel_kernel" in maps:
        x = jnp.einsum("nzc,cd->nzd", x, maps["channel_kernel"]) + maps["channel_bias"]
    return x


def convolution(images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array:
    """images (N, H, W, channels), kernel (size, size, channels, features), bias (features,) -> (N, H', W', features).

    Computes one matrix product over squares of pixels. The squares need size^2 / stride^2 times the memory of the
    images, but this product is faster than XLA's convolution on a CPU.
    """
    check_scores("images", images, "images height width channels")
    check_scores("kernel", kernel, "size size channels features")
    check_scores("bias", bias, "features")
    stride = check_at_least("stride", stride, 1)
    padding = check_kernel(kernel, images.shape[3], bias)
    _, height, width, _ = images.shape
    sides = (padding, padding)
    padded = jnp.pad(jnp.asarray(images), ((0, 0), sides, sides, (0, 0)))
    offsets = range(kernel.shape[0])
    squares = jnp.stack(
        [padded[:, i : i + height : stride, j : j + width : stride] for i in offsets for j in offsets], 3
    )
    return jnp.einsum("nhwpc,pcf->nhwf", squares, kernel.reshape(-1, *kernel.shape[2:])) + bias


@by_groups({"x": "group", "draws": "group"})
def dropout(x: Array, draws: Array, *, rate: float) -> Array:
    """x (...), draws (...) -> (...), in the dtype of x."""
    check_floating("x", x)
    check_rank("x", x, "...")
    check_floating("draws", draws)
    check_draws(draws, x)
    return jnp.where(draws >= threshold(rate), x / (1 - rate), jnp.zeros_like(x))
