"""Rows of small groups, on a TPU: products with one-hot rows in place of gathers.

A TPU reads the tile of eight rows that a gathered row lies in. A product with the one-hot rows of the slots reads each row once, for
2 S T D operations more of S slots and T tokens: exact in bfloat16, whose products are added in float32. On another device,
and in larger groups, rows are gathered.

Shape comments: G groups, T tokens, E experts, C capacity, D width; R = E G C rows, in this order.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.gathers import combine_rows, dispatch_rows, take_rows
from moespec.backends.jax.products import in_three_parts

__all__ = ["combine", "dispatch", "pays"]

SMALL = 256
"""Tokens of a group. On a TPU v5e (197 TFLOP/s, 819 GB/s) the 2 T operations on each two bytes of a slot's row take as long as
reading the eight rows of a tile in place of one at T = 1 700 by the compiler's account, which no device has confirmed."""


def pays(tokens: Array) -> bool:
    """Whether rows of these tokens (G, T, D) are made by products where it is compiled for a TPU."""
    return tokens.dtype == jnp.bfloat16 and tokens.shape[1] <= SMALL


@jax.custom_vjp
def dispatch(tokens: Array, token: Array, slots: Any) -> Array:
    """The row of each slot's token, 0 for an empty slot: tokens (G, T, D), token (G, E, C), `slots` the same as `Rows` -> (R, D)."""
    return lax.platform_dependent(tokens, token, slots, tpu=_rows, default=_gathered)


def _dispatch_forward(tokens: Array, token: Array, slots: Any) -> tuple[Array, Any]:
    return dispatch(tokens, token, slots), (token, slots, tokens[0, :, :0])


def _dispatch_backward(kept: Any, cotangent: Array) -> tuple[Array, None, None]:
    token, slots, tokens = kept

    def summed(cotangent: Array, token: Array, slots: Any) -> Array:
        shape = (1, len(token) * len(tokens), cotangent.shape[1])
        (to_tokens,) = jax.linear_transpose(lambda x: dispatch_rows(...), shape)(cotangent)
        return to_tokens

    return lax.platform_dependent(cotangent, token, slots, tpu=_tokens, default=summed), None, None
