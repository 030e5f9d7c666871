"""Moving rows between tokens and slots: gathers whose gradient is a gather too, or a sum in a fixed order.

Each operation is an opaque custom operator, so that a compiler cannot fuse it with its neighbours (fusions of gathers,
reductions and scatters have been miscompiled), and so that no gradient becomes an atomic addition: results do not
depend on the order in which threads run. An index equal to the number of rows means "no row": it reads zeros.

    permute_rows   out[m] = rows[index[m]]                     gradient: sum of the K rows that `inverse` names
    gather_rows    out[m] = rows[index[m]]                     gradient: `sum_rows`
    sum_rows       out[n] = sum of rows[m] with index[m] == n  gradient: `gather_rows`
    take_scores    out[g, e, c] = scores[g, token[g, e, c], e] gradient: `put_scores`, and the reverse
    invert_index   the position at which each value occurs in an index
"""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.arrays import wide
from moespec.backends.torch.operators import operator


@operator
def gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """`rows` (N, D) at `index` (M,), where N reads a row of zeros: (M, D)."""
    return _gather(rows, index)


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return padded.index_select(0, index)


@gather_rows.register_fake
def _(rows: Tensor, index: Tensor) -> Tensor:
    return rows.new_empty(index.shape[0], rows.shape[1])


@operator
def permute_rows(rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """As `gather_rows`; `inverse` (N, K) holds the places in `index` where each row is read, M where it is not."""
    return _gather(rows, index)


@permute_rows.register_fake
def _(rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    return rows.new_empty(index.shape[0], rows.shape[1])


@operator
def sum_rows(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Sums of the `rows` (M, D) with equal `index` (M,), in the order of the rows: (count, D); `count` is left out."""
    if rows.device.type == "cpu":
        return _sum_serially(rows, index, count)
    return _sum_segments(rows, index, count)


def _sum_serially(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """For the CPU, where `index_add_` adds one row after the other."""
    return rows.new_zeros(count + 1, rows.shape[1]).index_add_(0, index, rows)[:count].contiguous()


def _sum_segments(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """A stable sort of the integers brings the rows of a sum together; one thread then adds them up in order."""
    ordered, order = torch.sort(index, stable=True)
    edges = torch.searchsorted(ordered, torch.arange(count + 1, device=index.device, dtype=index.dtype))
    return torch.segment_reduce(
        rows.index_select(0, order), "sum", lengths=edges.diff(), axis=0, unsafe=True, initial=0.0
    )


@sum_rows.register_fake
def _(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_empty(count, rows.shape[1])


@operator
def take_scores(scores: Tensor, token: Tensor) -> Tensor:
    """`scores` (G, T, E) at `token` (G, E, C), where T reads 0: (G, E, C)."""
    tokens = scores.shape[1]
    taken = scores.mT.gather(2, token.clamp(max=tokens - 1).long())
    return taken.masked_fill_(token == tokens, 0)


@take_scores.register_fake
def _(scores: Tensor, token: Tensor) -> Tensor:
    return scores.new_empty(token.shape)


@operator
def put_scores(values: Tensor, token: Tensor, tokens: int) -> Tensor:
    """`values` (G, E, C) at (g, token[g, e, c], e) of zeros (G, tokens, E). An expert has a token at most once."""
    groups, experts, _ = values.shape
    rows = values.new_zeros(groups, tokens + 1, experts).scatter_(1, token.mT.long(), values.mT)
    return rows[:, :tokens].contiguous()


@put_scores.register_fake
def _(values: Tensor, token: Tensor, tokens: int) -> Tensor:
    return values.new_empty(values.shape[0], tokens, values.shape[1])


@operator
def invert_index(index: Tensor, count: int) -> Tensor:
    """Where each of `0 .. count - 1` occurs in `index` (..., M), or M if it does not: (..., count) int32.

    The value `count` in `index` is ignored; any other value occurs at most once.
    """
    size = index.shape[-1]
    place = torch.arange(size, device=index.device, dtype=torch.int32).expand(index.shape)
    inverse = place.new_full((*index.shape[:-1], count + 1), size)
    return inverse.scatter_(-1, index.long(), place)[..., :count].contiguous()


@invert_index.register_fake
def _(index: Tensor, count: int) -> Tensor:
    return index.new_empty((*index.shape[:-1], count), dtype=torch.int32)


# Gradients.


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, index = inputs
    ctx.save_for_backward(index)
    ctx.count = rows.shape[0]


def _gather_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    summed = sum_rows(gradient.to(wide(gradient.dtype)).contiguous(), index, ctx.count)
    return summed.to(gradient.dtype), None


def _permute_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[2])


def _permute_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (inverse,) = ctx.saved_tensors
    count, choices = inverse.shape
    gathered = gather_rows(gradient.contiguous(), inverse.reshape(-1))
    if choices > 1:
        gathered = gathered.reshape(count, choices, -1).sum(dim=1, dtype=wide(gradient.dtype)).to(gradient.dtype)
    return gathered, None, None


def _sum_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return gather_rows(gradient.contiguous(), ctx.saved_tensors[0]), None, None


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


gather_rows.register_autograd(_gather_backward, setup_context=_gather_setup)
permute_rows.register_autograd(_permute_backward, setup_context=_permute_setup)
sum_rows.register_autograd(_sum_backward, setup_context=_sum_setup)
take_scores.register_autograd(_take_backward, setup_context=_take_setup)
put_scores.register_autograd(_put_backward, setup_context=_put_setup)
