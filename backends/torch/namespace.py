"""The array namespace of torch; see `moespec.backends.common.namespace`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moespec.backends.common.namespace import Axis
from moespec.backends.torch import arrays, gathers, operators, positions_in_expert, products, rng, selection, slots
from moespec.backends.torch.operators import NAMESPACE

SlotRouting, SoftRouting = slots.SlotRouting, slots.SoftRouting
broadcast_to, cast, concatenate = arrays.broadcast_to, arrays.cast, arrays.concatenate
stop_gradient, promote, product = arrays.stop_gradient, arrays.widen, products.product
invert_index, positions, top_indices = gathers.invert_index, positions_in_expert.positions, selection.top_indices
shift_right_logical, threefry = rng.shift_right_logical, rng.threefry

abs, clip, cos, cumsum, exp, log = torch.abs, torch.clamp, torch.cos, torch.cumsum, torch.exp, torch.log
log_softmax, maximum, rsqrt, sigmoid = torch.log_softmax, torch.clamp_min, torch.rsqrt, torch.sigmoid
sign, sin, sqrt, square, stack = torch.sign, torch.sin, torch.sqrt, torch.square, torch.stack
swapaxes, tanh, where, zeros_like = torch.swapaxes, torch.tanh, torch.where, torch.zeros_like


def promote_all(*tensors: Tensor) -> list[Tensor]:
    """Casts all tensors to float64 if one of the tensors is float64, else to float32."""
    dtype = arrays.wide(*(tensor.dtype for tensor in tensors))
    return [tensor.to(dtype) for tensor in tensors]


def full(shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
    """A tensor filled with the value, in the dtype of `like`."""
    return like.new_full(shape, value)


def arange(start: int, stop: int, like: Tensor) -> Tensor:
    """`start, ..., stop - 1` in the dtype of `like`."""
    return torch.arange(start, stop, dtype=like.dtype, device=like.device)


def eye(count: int, like: Tensor) -> Tensor:
    """The identity matrix, in the dtype of `like`."""
    return torch.eye(count, dtype=like.dtype, device=like.device)


def indices(count: int, like: Tensor) -> Tensor:
    """`0, 1, ..., count - 1` in int32."""
    return torch.arange(count, dtype=torch.int32, device=like.device)


def erfc(x: Tensor) -> Tensor:
    """The complementary error function. Arguments are clipped, because `torch.erfc` is slow for subnormal results."""
    return torch.erfc(x.clamp_max(26.0 if x.dtype == torch.float64 else 9.0))


def softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`, also exact for large x, where `torch.nn.functional.softplus` returns x."""
    return torch.logaddexp(x, torch.zeros_like(x))


def logsumexp(x: Tensor, axis: int, *, keepdims: bool = False) -> Tensor:
    """The logarithm of the sum of the exponentials."""
    return torch.logsumexp(x, axis, keepdim=keepdims)


def max(x: Tensor, axis: int, *, keepdims: bool = False) -> Tensor:
    """The largest entry."""
    return x.amax(axis, keepdim=keepdims)


def mean(x: Tensor, axis: Axis | None = None, *, keepdims: bool = False) -> Tensor:
    """The mean."""
    return x.mean(axis, keepdim=keepdims)


def sum(x: Tensor, axis: Axis | None = None, *, keepdims: bool = False) -> Tensor:
    """The sum."""
    return x.sum(axis, keepdim=keepdims)


def softmax(x: Tensor, axis: Axis) -> Tensor:
    """`exp(x) / sum(exp(x))`. If `axis` lists several axes, they must be the last axes of `x`."""
    return (
        torch.softmax(x, axis) if isinstance(axis, int) else torch.softmax(x.flatten(axis[0]), axis[0]).reshape(x.shape)
    )


def argmax(x: Tensor) -> Tensor:
    """The index of the first largest entry: (..., n) -> (..., 1). `torch.argmax` does not guarantee the first index."""
    return top_indices(x, 1)


def top_values(x: Tensor, count: int) -> Tensor:
    """The `count` largest entries, in descending order."""
    return take(x.detach(), top_indices(x, count))


def argsort(x: Tensor) -> Tensor:
    """The indices that sort `x` in ascending order: (..., n) -> (..., n) int32."""
    return torch.sort(x, dim=-1, stable=True).indices.int()


def take(x: Tensor, index: Tensor) -> Tensor:
    """The entries of `x` at `index`: (..., n) and (..., k) -> (..., k)."""
    return x.gather(-1, index.long())


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows of `x` at `index`: (G, N, D) and (G, M) -> (G, M, D)."""
    return x.gather(1, index.long()[..., None].expand(-1, -1, x.shape[2]))


pick = take


def is_chosen(indices: Tensor, like: Tensor) -> Tensor:
    """A boolean mask that is true at the given indices; index n marks nothing: (..., k) -> (..., n)."""
    *leading, size = like.shape
    chosen = torch.zeros(*leading, size + 1, dtype=torch.bool, device=like.device)
    return chosen.scatter(-1, indices.long(), True)[..., :size]


def count(index: Tensor, size: int, like: Tensor) -> Tensor:
    """The number of occurrences of each value 0, ..., size - 1: (size,) in the dtype of `like`."""
    flat = index.flatten()
    return like.new_zeros(size).index_add(0, flat, torch.ones_like(flat, dtype=like.dtype))


def put_true(indices: Tensor, like: Tensor, axis: int) -> Tensor:
    """A boolean mask of the shape of `like` that is true at the given indices along an axis."""
    return torch.zeros_like(like, dtype=torch.bool).scatter(axis, indices.long(), True)


def largest(x: Tensor, count: int) -> tuple[Tensor, Callable[[Callable[[Tensor], Tensor]], Tensor]]:
    """Returns the `count` largest entries, descending, and a function `place`, where `place(f)` writes `f(entries)` into zeros like `x`."""
    if count == x.shape[-1]:
        return torch.sort(x, dim=-1, descending=True, stable=True).values, lambda function: function(x)
    index = top_indices(x, count).long()
    entries = x.gather(-1, index)
    return entries, lambda function: torch.zeros_like(x).scatter(-1, index, function(entries))


def scaled_product(tokens: Tensor, x: Tensor, slots: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """`(rows * x) (columns * slots)`: (G, T, D), (D, E, C), (G, T, 1), (1, E, C) -> (G, T, E, C).

    16-bit tokens stay exact: instead of the tokens, this function scales the rows of their product.
    """
    slots = slots if columns is None else slots * columns
    if rows is None:
        logits = products.product(tokens, slots.flatten(1), x)
    elif tokens.dtype == x.dtype:
        logits = products.product(x * rows, slots.flatten(1))
    else:
        logits = products.product(tokens, slots.flatten(1), x) * rows
    return logits.reshape(*x.shape[:2], *slots.shape[1:])


def slot_weights(scores: Tensor, token: Tensor, slot: Tensor | None) -> Tensor:
    """The score of each slot's token for the slot's expert, or 0 for an empty slot: (G, T, E) -> (G, E, C)."""
    taken: Tensor = gathers.take_scores(scores, token)
    return taken


def by_expert(routing: slots.SlotRouting, values: Tensor) -> Tensor:
    """Writes the value of each slot to the slot's token and expert: (G, E, C) -> (G, T, E)."""
    placed: Tensor = gathers.put_scores(values, routing.token, routing.tokens)
    return placed


def loop(count: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Runs `state = body(step, state)` for the steps 0, ..., count - 1."""
    for step in range(count):
        state = body(step, state)
    return state


def whole(function: Callable[..., Any]) -> Any:
    """Returns the operator of the same name in `moespec.backends.torch.solvers`, because unrolled loops compile slowly.

    A Sinkhorn plan uses the operator only if `kernels.sinkhorn` supports the logits.
    """
    operator = getattr(getattr(torch.ops, NAMESPACE), function.__name__)

    def call(xp: Any, x: Tensor, *numbers: Any) -> Any:
        if function.__name__ == "sinkhorn_plan" and not _sinkhorn_fits(x):
            return function(xp, x, *numbers)
        return operator(x.contiguous(), *numbers)

    return call


def _sinkhorn_fits(logits: Tensor) -> bool:
    """True if `kernels.sinkhorn` supports the logits (G, T, E): float32, no gradient, at most 64 registers for each of 256 threads."""
    _, tokens, experts = logits.shape
    numbers = (1 << (tokens - 1).bit_length()) * (1 << (experts - 1).bit_length())
    return operators.on_gpu(logits) and not logits.requires_grad and logits.dtype == torch.float32 and numbers <= 2**14
