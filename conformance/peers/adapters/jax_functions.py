"""Functions of JAX and optax that programs use to compute what moespec specifies."""

from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import lax

from moespec.conformance.peers.adapters.on_jax import SlotRouting, shared

__getattr__ = shared


def router_logits(tokens: jax.Array, kernel: jax.Array) -> jax.Array:
    """`jax.numpy.matmul`."""
    return jnp.matmul(tokens, kernel)


def softmax_affinity(logits: jax.Array) -> jax.Array:
    """`jax.nn.softmax` over experts."""
    return jax.nn.softmax(logits, axis=-1)


def batch_priority(scores: jax.Array, *, by: str = "max", choices: int = 1) -> jax.Array:
    """`jax.numpy.argsort(descending=True)` of each token's largest score, or of the sum of the token's scores from `jax.lax.top_k`."""
    priority = scores.max(axis=-1) if by == "max" else lax.top_k(scores, choices)[0].sum(axis=-1)
    return jnp.argsort(priority, axis=-1, descending=True)


def expert_choice(
    scores: jax.Array, *, capacity: int, combine_scores: jax.Array | None = None, drop_zero: bool = False
) -> Any:
    """`jax.lax.top_k` over the tokens, for each expert."""
    if drop_zero:
        raise NotImplementedError("top_k leaves no slot empty")
    token = lax.top_k(scores.mT, capacity)[1]
    weight = jnp.take_along_axis((scores if combine_scores is None else combine_scores).mT, token, axis=-1)
    return SlotRouting(token, weight, None, scores.shape[1])


def gelu(x: jax.Array, **options: Any) -> jax.Array:
    """`jax.nn.gelu`."""
    if "form" in options:
        options["approximate"] = {"tanh": True, "erf": False}[options.pop("form")]
    return jax.nn.gelu(x, **options)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None = None, **options: Any) -> jax.Array:
    """`jax.nn.standardize`, followed by scale and bias."""
    normalised = jax.nn.standardize(x, axis=-1, **options) * scale
    return normalised if bias is None else normalised + bias


def attention(query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool = False) -> jax.Array:
    """`jax.nn.dot_product_attention`."""
    return jax.nn.dot_product_attention(query, key, value, is_causal=causal)


def patch_embed(images: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """`jax.lax.conv_general_dilated` with the patch size as its stride."""
    patches = lax.conv_general_dilated(
        images, kernel, kernel.shape[:2], "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    patches = patches.reshape(len(images), -1, kernel.shape[3])
    return patches if bias is None else patches + bias


def softmax_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """`optax.softmax_cross_entropy`."""
    loss: jax.Array = optax.softmax_cross_entropy(logits, targets)
    return loss


def sigmoid_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """`optax.sigmoid_binary_cross_entropy`, summed over classes."""
    loss: jax.Array = optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
    return loss
