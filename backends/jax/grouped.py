"""Computes the MoE layer whose experts are perceptrons, on the rows of all groups, sorted by expert.

If a routing has far more slots than choices, only the rows of filled slots are multiplied, so that the cost grows with the number of
tokens and not with the number of slots. The rows of an expert are multiplied in blocks of at most BLOCK rows, and the device computes the
number of blocks. On a TPU, the kernels of `megablox` compute these products, and `one_hot` dispatches and combines the rows of small
groups.

Shape comments: G groups, T tokens, E experts, C capacity, K choices, D width, H hidden; N = G T K choices.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.common.allocations import mostly_empty
from moespec.backends.common.expert_kinds import Kinds, weighted_inputs, with_kinds
from moespec.backends.common.network import Linear, check_activation, expert_weights, perceptron, second_factor
from moespec.backends.jax import megablox, one_hot
from moespec.backends.jax import namespace as xp
from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.derivatives import bilinear, linear
from moespec.backends.jax.explicit import is_split
from moespec.backends.jax.gathers import combine_rows, dispatch_rows
from moespec.backends.jax.network import activate, expert_mlp
from moespec.backends.jax.slots import SlotRouting, SoftRouting, moe_layer
from moespec.spec.checks import check_scores, check_size
from moespec.spec.values import present

__all__ = ["moe_mlp"]

BLOCK, STEP = 256, 32
"""A matrix product takes BLOCK rows, enough for full speed. Only the last product of an expert may take fewer: a multiple of STEP."""


def moe_mlp(
    tokens: Array,
    routing: SlotRouting | SoftRouting,
    params: Mapping[str, Array],
    *,
    shared: Mapping[str, Array] | None = None,
    latent: Mapping[str, Array] | None = None,
    constants: Mapping[str, Array] | None = None,
    copies: int = 0,
    zeros: int = 0,
    weights_on: str = "output",
    gelu: str = "tanh",
    activation: str = "gelu",
    norm_epsilon: float = 1e-6,
) -> Array:
    """tokens (G, T, D), params as in the specification -> (G, T, D') in the dtype of `tokens`.

    If most slots are empty and the experts are not split over a mesh, computes only the filled slots, otherwise all slots.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_activation(gelu, activation)
    options: Any = {"gelu": gelu, "activation": activation}
    kinds = Kinds(shared, latent, constants, copies, zeros, weights_on, norm_epsilon)

    def mlps(x: Array, to: Any) -> Array:
        if is_split(params) or not isinstance(to, SlotRouting):
            experts: Any = partial(expert_mlp, params=params, **options)
            weighted = weighted_inputs(xp, to, experts) if weights_on == "input" else (to, experts)
            return moe_layer(x, *weighted)
        weights = expert_weights(xp, params, x.dtype, width=x.shape[2], experts=to.token.shape[1])  # type: ignore[misc]
        active, second = activate(gelu, activation), second_factor(xp, activation)  # type: ignore[misc]

        def run(rows: Array, linear: Linear[Array]) -> Array:
            outputs: Array = perceptron(rows, weights, linear, active, second)
            return outputs

        return layer_of_rows(x, to, run, weigh_inputs=weights_on == "input")

    y: Array = with_kinds(xp, moe_layer, expert_mlp, mlps, jnp.asarray(tokens), routing, kinds, **options)  # type: ignore[misc]
    return y


def affine_layer(tokens: Array, routing: SlotRouting, kernel: Array, bias: Array) -> Array:
    """Computes the layer with experts `x @ kernel[e] + bias[e]`: tokens (G, T, D), kernel (E, D, H), bias (E, H) -> (G, T, H)."""
    return layer_of_rows(tokens, routing, lambda rows, linear: linear(rows, kernel, bias))


def layer_of_rows(
    tokens: Array, routing: SlotRouting, run: Callable[[Array, Linear[Array]], Array], *, weigh_inputs: bool = False
) -> Array:
    """Computes the layer with experts `run(rows, linear)`, where `linear(rows, kernel, bias)` is `rows @ kernel[e] + bias[e]`.

    tokens (G, T, D) -> (G, T, D') in the dtype of `tokens`. One call of `run` maps the rows (R, D) of all groups to (R, D'). The combine
    weights multiply the results of `run` or, if `weigh_inputs`, its rows.
    """
    groups, count, width = tokens.shape
    check_size("tokens", tokens, 0, len(routing.token), "the groups of routing")
    check_size("tokens", tokens, 1, routing.tokens, "the tokens of routing")
    slots, linear, grouped = rows_of_slots(routing), batched_linear, mostly_empty(routing)
    if grouped:
        slots, ends = filled_rows(slots, len(tokens) * count, routing.token.shape[1])
        linear = partial(grouped_linear, ends=ends)
    elif one_hot.pays(tokens, routing.token) and not weigh_inputs:
        outputs = run(one_hot.dispatch(tokens, routing.token, slots), linear)
        return one_hot.combine(count, outputs, slots.weight, routing.token, slots).astype(tokens.dtype)
    places = slots.token, slots.row
    inputs = dispatch_rows(groups * count, tokens.reshape(1, groups * count, width), *places, fill=not grouped)
    rows, weight = inputs[0], slots.weight
    if weigh_inputs:
        rows, weight = (wide(rows) * weight[0, :, None]).astype(rows.dtype), jnp.ones_like(weight)
    # No product reads a row without an expert, so these rows need not be 0.
    result = combine_rows(groups * count, run(rows, linear)[None], weight, *places, fill=not grouped)
    return result.reshape(groups, count, -1).astype(tokens.dtype)


class Rows(NamedTuple):
    """The rows that the experts process, from all groups, sorted by expert.

    `token` (1, R) int32 is the token `g T + t` of each row, or `G T` for no token. `weight` (1, R) is the combine weight of each row.
    `row` (1, G T, K) int32 lists each token's rows, or R for a choice without a row. `row` is None if a token may have any number of rows.
    """

    token: Array
    weight: Array
    row: Array | None


def rows_of_slots(routing: SlotRouting) -> Rows:
    """Returns one row per slot, filled or empty: slot c of expert e in group g has row `(e G + g) C + c`."""
    groups, experts, capacity = routing.token.shape
    group = jnp.arange(groups, dtype=jnp.int32)[:, None, None]
    token = jnp.where(routing.token < routing.tokens, routing.token + group * routing.tokens, groups * routing.tokens)
    token, weight = (jnp.swapaxes(each, 0, 1).reshape(1, -1) for each in (token, routing.weight))
    if routing.slot is None:
        return Rows(token, weight, None)
    row = (routing.slot // capacity * groups + group) * capacity + routing.slot % capacity
    row = jnp.where(routing.slot < experts * capacity, row, token.size)
    return Rows(token, weight, row.reshape(1, groups * routing.tokens, -1))


def filled_rows(slots: Rows, tokens: int, experts: int) -> tuple[Rows, Array]:
    """Returns the rows of filled slots, padded from N rows to whole blocks, and the end (E,) of each expert's rows."""
    of_choice = present("slots.row", slots.row)
    size = -(-of_choice.size // BLOCK) * BLOCK
    filled = slots.token < tokens
    ends = jnp.cumsum(jnp.sum(filled.reshape(experts, -1), axis=1, dtype=jnp.int32))
    row = jnp.where(filled, jnp.cumsum(filled, axis=1, dtype=jnp.int32) - 1, size)
    slot = xp.invert_index(row, size)
    token = jnp.append(slots.token[0], tokens)[slot]
    weight = dispatch_rows(row.size, slots.weight[..., None], slot, row[..., None])[..., 0]
    # The index is flat, because a TPU gather reads entire tiles if the last axis of the index is small.
    places = jnp.append(row[0], size)[of_choice.reshape(-1)].reshape(of_choice.shape)
    return Rows(token, weight, places), ends


def batched_linear(rows: Array, kernel: Array, bias: Array | None) -> Array:
    """rows (E N, D), kernel (E, D, H), bias (E, H) or None -> (E N, H). All experts have the same number of rows."""
    by_expert = rows.reshape(len(kernel), -1, rows.shape[1])
    y = jnp.einsum("end,edh->enh", by_expert, kernel)
    return (y if bias is None else y + bias[:, None]).reshape(len(rows), -1)


def grouped_linear(rows: Array, kernel: Array, bias: Array | None, ends: Array) -> Array:
    """rows (R, D), kernel (E, D, H), bias (E, H) or None -> (R, H): `rows @ kernel[e] + bias[e]`.

    The rows of expert e end at `ends[e]`. R is a multiple of BLOCK. The results for rows without an expert are undefined.
    """
    return _products_of(False, rows, kernel, bias, ends)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _products_of(turned: bool, rows: Array, kernel: Array, bias: Array | None, ends: Array) -> Array:
    loop, on_tpu = (partial(each, turned=turned) for each in (_products, megablox.products))
    result: Array = _of_device(loop, on_tpu, rows, kernel, ends, *([] if bias is None else [bias]))
    return result


def _products_tangent(turned: bool, primals: Any, tangents: Any) -> tuple[Array, Array]:
    moved, transposed = (partial(each, turned) for each in (_products_moved, _products_transposed))
    arrays = [tangent for tangent in tangents[:3] if tangent is not None]
    return _products_of(turned, *primals), linear(moved, transposed, primals, arrays)[0]


def _products_moved(turned: bool, primals: Any, to_rows: Array, to_kernel: Array, *to_bias: Array) -> tuple[Array]:
    rows, kernel, _, ends = primals
    of_rows = _products_of(turned, to_rows, kernel, to_bias[0] if to_bias else None, ends)
    return (of_rows + _products_of(turned, rows, to_kernel, None, ends),)


def _products_transposed(turned: bool, primals: Any, cotangent: Array) -> tuple[Array, ...]:
    rows, kernel, bias, ends = primals
    to_rows = _products_of(not turned, cotangent, kernel, None, ends)
    left, right = (cotangent, rows) if turned else (rows, cotangent)
    sums = bilinear(_sums, _sums_transposed, ends, left, right)
    return (to_rows, *sums[: 1 if bias is None else 2])


_products_of.defjvp(_products_tangent, symbolic_zeros=True)


def _sums(ends: Array, rows: Array, gradient: Array) -> tuple[Array, Array]:
    kernel, bias = _of_device(_sums_of_products, megablox.sums_of_products, rows, gradient, ends)
    return kernel, bias


def _sums_transposed(ends: Array, rows: Array, gradient: Array, kernel: Array, bias: Array) -> tuple[Array, Array]:
    return _products_of(True, gradient, kernel, None, ends), _products_of(False, rows, kernel, bias, ends)


def _of_device(loop: Callable[..., Any], kernel: Callable[..., Any], rows: Array, *others: Array) -> Any:
    """Runs `kernel` on a TPU if the kernels support these rows, else `loop`. Both functions compute the same result."""
    if not megablox.takes(rows):
        return loop(rows, *others)
    return lax.platform_dependent(rows, *others, tpu=kernel, default=loop)


def _products(rows: Array, kernel: Array, ends: Array, bias: Array | None = None, *, turned: bool = False) -> Array:
    """Computes `rows @ kernel[e] + bias[e]`, or `rows @ kernel[e]^T` if `turned`, in the order of the experts.

    A product may write into the rows of the next expert. The product of the next expert overwrites these rows.
    """
    axis = 1 if turned else 0

    def product(size: int, x: Array, matrix: Array) -> Array:
        y = lax.dot_general(x[:size], matrix, (((1,), (axis,)), ((), ())))
        return jnp.pad(y, ((0, BLOCK - size), (0, 0)))

    def of_expert(e: Array, result: Array) -> Array:
        def of_block(m: Array, result: Array) -> Array:
            start, branch = starts[e] + m * BLOCK, _branch(ends[e] - starts[e] - m * BLOCK)
            y = lax.switch(branch, _by_size(product), lax.dynamic_slice_in_dim(rows, start, BLOCK), matrix)
            return lax.dynamic_update_slice_in_dim(result, y if bias is None else y + bias[e], start, 0)

        matrix = kernel[e]
        result = lax.fori_loop(0, _blocks(ends[e] - starts[e]), of_block, result)
        return result

    starts, count, rows = jnp.append(0, ends[:-1]), len(rows), _and_block(rows)
    result: Array = lax.fori_loop(0, len(kernel), of_expert, jnp.zeros((len(rows), kernel.shape[2 - axis]), rows.dtype))
    return result[:count]


def _sums_of_products(rows: Array, gradient: Array, ends: Array) -> tuple[Array, Array]:
    """Computes `rows^T gradient` (E, D, H) and the sum of `gradient` (E, H) over each expert's rows, in float32 or better."""
    exact = wide(gradient).dtype
    rows, gradient = _and_block(rows), _and_block(gradient)

    def product(size: int, x: Array, g: Array) -> Array:
        return lax.dot_general(x[:size], g[:size], (((0,), (0,)), ((), ())), preferred_element_type=exact)

    def of_expert(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        start, end = bounds

        def of_block(m: Array | int) -> tuple[Array, Array]:
            first = start + m * BLOCK
            x, g = (lax.dynamic_slice_in_dim(array, first, BLOCK) for array in (rows, gradient))
            g = jnp.where(first + jnp.arange(BLOCK)[:, None] < end, g, 0)
            return lax.switch(_branch(end - first), _by_size(product), x, g), jnp.sum(wide(g), axis=0)

        def add(m: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            kernel, bias = of_block(m)
            return sums[0] + kernel, sums[1] + bias

        kernel, bias = lax.fori_loop(1, _blocks(end - start), add, of_block(0))  # both 0 for an expert without rows
        return kernel.astype(gradient.dtype), bias.astype(gradient.dtype)

    kernels, biases = lax.map(of_expert, (jnp.append(0, ends[:-1]), ends))
    return kernels, biases


def _and_block(rows: Array) -> Array:
    """Appends one block of zeros to the rows, because the last block of an expert may extend past the end of the array."""
    return jnp.pad(rows, ((0, BLOCK), (0, 0)))


def _blocks(rows: Array) -> Array:
    return (rows + BLOCK - 1) // BLOCK


def _branch(rows: Array) -> Array:
    """The index in `_by_size` of the smallest product that covers this number of rows. More than BLOCK rows use the largest product."""
    return (jnp.clip(rows, 1, BLOCK) - 1) // STEP


def _by_size(product: Callable[..., Array]) -> list[Callable[..., Array]]:
    return [partial(product, size) for size in range(STEP, BLOCK + 1, STEP)]
