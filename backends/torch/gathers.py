"""Moves rows between tokens and slots: the gradient of a gather is a sum in a fixed order, and the gradient of a sum is a gather.

Each operation is an opaque custom operator. A compiler therefore cannot fuse the operator with its neighbours (fusions of
gathers, reductions and scatters have been miscompiled), and no gradient uses atomic additions, so results do not depend
on the order of threads. An index equal to the number of rows means "no row" and reads zeros.

    gather_rows    out[m] = rows[index[m]]                              gradient: `sum_rows`
    sum_rows       out[n] = sum of rows[m] with index[m] == n           gradient: `gather_rows`
    combine_rows   out[n] = sum of weight[m] rows[m], index[m] == n     gradient: `combine_gradients`
    take_scores    out[g, e, c] = scores[g, token[g, e, c], e]          gradient: `put_scores`, and vice versa
    invert_index   the position of each value in an index

The first three operators also accept an optional inverse of `index` (M,): `inverse` (N, K) lists the K positions of each n in
`index`, padded with M. With `inverse`, each sum adds its rows in the listed order. Without `inverse`, each sum adds its rows in ascending
order. Sums are computed in float32 or better. On a GPU the operators run the kernels of `kernels`, which read each input only once.
"""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide
from moespec.backends.torch.operators import differentiable, direct, mapped, operator, uses_kernel

SMALL = 2**15
"""The maximum size of rows that are copied, with a row of zeros, before a gather. Larger rows are gathered, then masked."""


@operator
def gather_rows(rows: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    """Gathers `rows` (N, D) at `index` (M,) into (M, D). The index N reads a row of zeros. The gradient uses `inverse` (N, K)."""
    return _gather(rows, index)


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    if uses_kernel(rows):
        from moespec.backends.torch import kernels

        return kernels.add_rows(rows, index[:, None], dtype=rows.dtype)
    if not len(rows):
        return rows.new_zeros(len(index), rows.shape[1])
    if rows.numel() <= SMALL:
        return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, index)
    taken = rows.index_select(0, index.clamp(max=len(rows) - 1))
    missing = index == len(rows)
    if rows.device.type == "cpu":  # on a GPU, `nonzero` would make the host wait
        return taken.index_fill_(0, missing.nonzero()[:, 0], 0)
    return taken.masked_fill_(missing[:, None], 0)


@gather_rows.register_fake
def _(rows: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    return rows.new_empty(index.shape[0], rows.shape[1])


@operator
def sum_rows(rows: Tensor, index: Tensor, count: int, inverse: Tensor | None = None) -> Tensor:
    """Sums all `rows` (M, D) that have the same `index` (M,): (count, D). Ignores rows with the index `count`."""
    return _sum(rows, None, index, count, inverse, rows.dtype)


@sum_rows.register_fake
def _(rows: Tensor, index: Tensor, count: int, inverse: Tensor | None = None) -> Tensor:
    return rows.new_empty(count, rows.shape[1])


@operator
def combine_rows(
    rows: Tensor, weight: Tensor, index: Tensor, count: int, inverse: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Multiplies each row by its `weight` (M,), then sums the rows like `sum_rows`. The result has the given dtype."""
    return _sum(rows, weight, index, count, inverse, dtype)


@combine_rows.register_fake
def _(rows: Tensor, weight: Tensor, index: Tensor, count: int, inverse: Tensor | None, dtype: torch.dtype) -> Tensor:
    return rows.new_empty(count, rows.shape[1], dtype=dtype)


def _sum(
    rows: Tensor, weight: Tensor | None, index: Tensor, count: int, inverse: Tensor | None, dtype: torch.dtype
) -> Tensor:
    if uses_kernel(rows):
        from moespec.backends.torch import kernels

        if inverse is not None:
            return kernels.add_rows(rows, inverse, weight=weight, dtype=dtype)
        order, edges = _segments(index, count)
        return kernels.add_rows(rows, order, edges=edges, weight=weight, dtype=dtype)
    total = wide(rows.dtype) if weight is None else wide(rows.dtype, weight.dtype)
    if inverse is None:
        rows = rows.to(total) if weight is None else rows.to(total) * weight[:, None]
        return (_sum_serially if rows.device.type == "cpu" else _sum_segments)(rows, index, count).to(dtype)
    places = inverse.reshape(-1)
    result = _gather(rows, places)
    if weight is not None:
        result = result.to(total).mul_(_gather(weight[:, None], places))
    if inverse.shape[1] != 1:
        result = result.reshape(*inverse.shape, rows.shape[1]).sum(dim=1, dtype=total)
    return result.to(dtype)


def _sum_serially(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Computes the sums on the CPU, where `index_add_` adds one row at a time."""
    return rows.new_zeros(count + 1, rows.shape[1]).index_add_(0, index, rows)[:count].contiguous()


def _sum_segments(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Computes the sums on other devices. For each sum, a single thread adds the rows in order."""
    order, edges = _segments(index, count)
    return torch.segment_reduce(
        rows.index_select(0, order), "sum", lengths=edges.diff(), axis=0, unsafe=True, initial=0.0
    )


def _segments(index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns an order (a stable sort of `index`) in which the rows of each sum are contiguous, and the start of each sum."""
    ordered, order = torch.sort(index, stable=True)
    return order, torch.searchsorted(ordered, torch.arange(count + 1, device=index.device, dtype=index.dtype))


@operator
def combine_gradients(
    gradient: Tensor, rows: Tensor, weight: Tensor, index: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of `combine_rows`: weight[m] gradient[index[m]] (M, D) for rows, and rows[m] . gradient[index[m]] (M,) for weights.

    Both gradients are 0 where `index` means "no row", whatever the row contains.
    """
    if uses_kernel(rows):
        from moespec.backends.torch import kernels

        return kernels.combine_gradients(gradient, rows, weight, index)
    dtype = wide(rows.dtype, weight.dtype)
    incoming = _gather(gradient, index).to(dtype)
    to_rows = (incoming * weight[:, None]).to(rows.dtype)
    to_weight = incoming.mul_(rows).sum(dim=1).masked_fill_(index == len(gradient), 0)
    return to_rows, to_weight.to(weight.dtype)


@combine_gradients.register_fake
def _(gradient: Tensor, rows: Tensor, weight: Tensor, index: Tensor, inverse: Tensor | None) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), weight.new_empty(weight.shape)


@operator
def take_scores(scores: Tensor, token: Tensor) -> Tensor:
    """Gathers `scores` (G, T, E) at `token` (G, E, C) into (G, E, C). The token T reads 0."""
    if uses_kernel(scores):
        from moespec.backends.torch import kernels

        return kernels.take_scores(scores, token)
    tokens = scores.shape[1]
    taken = scores.mT.gather(2, token.clamp(max=tokens - 1).long())
    return taken.masked_fill(token == tokens, 0)


@take_scores.register_fake
def _(scores: Tensor, token: Tensor) -> Tensor:
    return scores.new_empty(token.shape)


@operator
def put_scores(values: Tensor, token: Tensor, tokens: int) -> Tensor:
    """Writes `values` (G, E, C) into zeros (G, tokens, E), at (g, token[g, e, c], e). An expert takes each token at most once."""
    if uses_kernel(values):
        from moespec.backends.torch import kernels

        return kernels.put_scores(values, token, tokens)
    groups, experts, _ = values.shape
    rows = values.new_zeros(groups, tokens + 1, experts).scatter_(1, token.mT.long(), values.mT)
    return rows[:, :tokens].contiguous()


@put_scores.register_fake
def _(values: Tensor, token: Tensor, tokens: int) -> Tensor:
    return values.new_empty(values.shape[0], tokens, values.shape[1])


@mapped
@operator
def invert_index(index: Tensor, count: int) -> Tensor:
    """Finds the position of each value `0 .. count - 1` in `index` (..., M), or M if the value is absent: (..., count) int32.

    The value `count` in `index` is ignored; any other value occurs at most once.
    """
    if uses_kernel(index):
        from moespec.backends.torch import kernels

        return kernels.invert_index(index, count)
    size = index.shape[-1]
    place = torch.arange(size, device=index.device, dtype=torch.int32).expand(index.shape)
    inverse = place.new_full((*index.shape[:-1], count + 1), size)
    return inverse.scatter(-1, index.long(), place)[..., :count].contiguous()


@invert_index.register_fake
def _(index: Tensor, count: int) -> Tensor:
    return index.new_empty((*index.shape[:-1], count), dtype=torch.int32)


# Gradients.


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, index, inverse = inputs
    ctx.save_for_backward(index, inverse)
    ctx.count = rows.shape[0]


def _gather_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    index, inverse = ctx.saved_tensors
    return sum_rows(gradient.contiguous(), index, ctx.count, inverse), None, None


def _sum_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, _, inverse = inputs
    ctx.save_for_backward(index, inverse)


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return gather_rows(gradient.contiguous(), *ctx.saved_tensors), None, None, None


def _combine_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, weight, index, _, inverse, _ = inputs
    ctx.save_for_backward(rows, weight, index, inverse)


def _combine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *combine_gradients(gradient.contiguous(), *ctx.saved_tensors), None, None, None, None


def _gradients_backward(ctx: Any, of_rows: Tensor, of_weight: Tensor) -> tuple[Tensor | None, ...]:
    """Each result of `combine_gradients` is a product of two inputs, so the backward pass reuses `combine_gradients` and `combine_rows`."""
    gradient, rows, weight, index, inverse = ctx.saved_tensors
    to_rows, to_weight = combine_gradients(gradient, of_rows.contiguous(), of_weight.contiguous(), index, inverse)
    arguments = (index, len(gradient), inverse, gradient.dtype)
    to_gradient = combine_rows(of_rows.contiguous(), weight, *arguments) + combine_rows(rows, of_weight, *arguments)
    return to_gradient, to_rows, to_weight, None, None


def _take_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, token = inputs
    ctx.save_for_backward(token)
    ctx.tokens = scores.shape[1]


def _take_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return put_scores(gradient.contiguous(), ctx.saved_tensors[0], ctx.tokens), None


def _put_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _put_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return take_scores(gradient.contiguous(), ctx.saved_tensors[0]), None, None


invert_index = direct(invert_index)
gather_rows = differentiable(gather_rows, _gather_backward, _gather_setup)
sum_rows = differentiable(sum_rows, _sum_backward, _sum_setup)
combine_rows = differentiable(combine_rows, _combine_backward, _combine_setup)
combine_gradients = differentiable(combine_gradients, _gradients_backward)
take_scores = differentiable(take_scores, _take_backward, _take_setup)
put_scores = differentiable(put_scores, _put_backward, _put_setup)
