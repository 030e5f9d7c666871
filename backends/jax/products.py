"""Products of bfloat16 rows and a float32 matrix, to float32 accuracy where only bfloat16 is fast.

A TPU makes six bfloat16 products of one of float32 (`Precision.HIGHEST`), three parts of each side against each other. Rows
that come in bfloat16 are one part, so three products are enough, if what scales the rows is applied to the result.
"""

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array

Three = tuple[Array, Array, Array]


@jax.custom_jvp
def scaled_product(tokens: Array, factor: Array, slots: Array) -> Array:
    """`(factor * tokens) @ slots`: tokens (G, T, D) that are exact in bfloat16, factor (G, T, 1), slots (D, E, C).

    All are float32, as is the result, (G, T, E, C). The gradients are products at `Precision.HIGH`: three passes on a TPU
    with an error of 2^-16, TF32 on a GPU. Those that come in here, and the gradient of the tokens, are rounded to bfloat16
    in a layer of bfloat16 tokens, which is 2^-8.
    """
    # The parts are summed inside one product: as three sums of their own they would be written and read again.
    rows = tokens.astype(jnp.bfloat16)
    product = jnp.einsum(
        "pgtd,pdec->gtec",
        jnp.broadcast_to(rows, (3, *rows.shape)),
        in_three_parts(slots),
        preferred_element_type=jnp.float32,
    )
    return product * factor[..., None]


def in_three_parts(x: Array) -> Array:
    """Three bfloat16 arrays, stacked, whose sum is `x`: of its 24 bits, 8 each; the smallest first."""
    # By `reduce_precision`: XLA may drop a cast to bfloat16 and back.
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
