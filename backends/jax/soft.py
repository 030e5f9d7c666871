"""Soft MoE: every slot is a mean of all tokens, every token a mean of all slot outputs.

Shape comments: G groups, T tokens, E experts, C slots per expert, D width. Logits are in float32 or better.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.products import scaled_product
from moespec.backends.jax.slots import SoftRouting
from moespec.spec.checks import check_scores, check_size
from moespec.spec.soft_moe import check_forms, check_one_slot_each

__all__ = ["soft_routing"]

EPSILON = 1e-6


def soft_routing(
    tokens: Array,
    slots: Array,
    *,
    scale: Array | float = 1.0,
    normalize: bool = True,
    norm_form: str = "paper",
    dispatch: str = "soft",
    combine: str = "soft",
) -> SoftRouting:
    """tokens (G, T, D), slots (D, E, C) -> SoftRouting, in float32 or better.

    Tokens in bfloat16 are multiplied as such, in half the passes that a TPU needs for float32: see `scaled_product`.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("slots", slots, "width experts capacity")
    check_size("slots", slots, 0, tokens.shape[2], "the width of tokens")
    if not isinstance(scale, int | float):
        check_scores("scale", scale, "")
    check_forms(norm_form, dispatch, combine)
    exact = jnp.result_type(tokens) == jnp.bfloat16
    tokens, slots = wide(tokens), wide(slots)
    shape = (*tokens.shape[:2], *slots.shape[1:])
    count = shape[2] * shape[3]
    if dispatch == "identity":
        check_one_slot_each(*shape[1:])
        dealt = jnp.eye(count, dtype=tokens.dtype).reshape(shape[1], shape[3], shape[2])
        identity = jnp.broadcast_to(jnp.swapaxes(dealt, 1, 2), shape)
        return SoftRouting(identity, identity)

    factor = jnp.ones((*shape[:2], 1), tokens.dtype)
    if normalize:
        factor = inverse_norm(tokens, 2, norm_form)
        slots = jnp.asarray(scale, slots.dtype) * (slots * inverse_norm(slots, 0, norm_form))
    if exact and slots.dtype == jnp.float32:
        logits = scaled_product(tokens, factor, slots)
    else:
        logits = jnp.einsum("gtd,dec->gtec", factor * tokens, slots, precision=lax.Precision.HIGHEST)
    return SoftRouting(
        jax.nn.softmax(logits, axis=1) if dispatch == "soft" else jnp.full(shape, 1 / shape[1], logits.dtype),
        jax.nn.softmax(logits, axis=(2, 3)) if combine == "soft" else jnp.full(shape, 1 / count, logits.dtype),
    )


def inverse_norm(x: Array, axis: int, form: str) -> Array:
    """What `x` is multiplied by along `axis` to be normalised; the gradient of the norm at 0 is 0."""
    squares = jnp.sum(x * x, axis=axis, keepdims=True)
    if form == "rsqrt":
        return lax.rsqrt(squares + EPSILON)
    is_zero = squares == 0
    norm = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))
    return 1 / (norm + EPSILON)
