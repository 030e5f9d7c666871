"""Computes products of bfloat16 rows and a float32 matrix to float32 accuracy, on devices where only bfloat16 is fast.

A TPU computes a float32 product (`Precision.HIGHEST`) as six bfloat16 products of three bfloat16 parts per operand. A bfloat16 row is a
single part, so three products suffice. If the row also has a float32 factor, the factor multiplies the result.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array

Three = tuple[Array, Array, Array]


@jax.custom_jvp
def scaled_product(tokens: Array, factor: Array, slots: Array) -> Array:
    """`(factor * tokens) @ slots`: tokens (G, T, D) that are exact in bfloat16, factor (G, T, 1), slots (D, E, C).

    The arguments and the result (G, T, E, C) are float32. Gradients use `Precision.HIGH`: on a TPU, three passes with an error of 2^-16,
    and on a GPU, TF32. A layer with bfloat16 tokens has an error of 2^-8 anyway, because the layer rounds the incoming gradients
    and the gradient of the tokens to bfloat16.
    """
    # A single product sums the parts. Three separate products would be written to memory and read again.
    rows = tokens.astype(jnp.bfloat16)
    product = jnp.einsum(
        "pgtd,pdec->gtec",
        jnp.broadcast_to(rows, (3, *rows.shape)),
        in_three_parts(slots),
        preferred_element_type=jnp.float32,
    )
    return product * factor[..., None]


def in_three_parts(x: Array) -> Array:
    """Splits `x` into three stacked bfloat16 arrays with 8 of the 24 bits each, lowest bits first. The sum of the arrays is `x`."""
    # Uses `reduce_precision`, because XLA may remove a cast to bfloat16 and back.
    high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    middle = lax.reduce_precision(x - high, exponent_bits=8, mantissa_bits=7)
    return jnp.stack([x - high - middle, middle, high]).astype(jnp.bfloat16)


@scaled_product.defjvp
def _tangent(primals: Three, tangents: Three) -> tuple[Array, Array]:
    tokens, factor, slots = primals
    tokens_dot, factor_dot, slots_dot = tangents
    of_rows = _product(tokens_dot * factor + tokens * factor_dot, slots)
    return scaled_product(tokens, factor, slots), of_rows + _product(tokens * factor, slots_dot)


def _product(rows: Array, slots: Array) -> Array:
    return jnp.einsum("gtd,dec->gtec", rows, slots, precision=lax.Precision.HIGH)
