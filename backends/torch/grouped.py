"""Computes an MoE layer whose experts are MLPs: sorts rows by expert, and multiplies each row by the matrix of its expert.

If a routing has far more slots than choices (for example, if each expert has room for every token), only the rows of
filled slots are multiplied. The work then grows with the number of tokens, not with the number of slots.

    grouped_rows     out[n] = rows[n] @ kernel[expert of n]^T
    grouped_kernels  out[e] = sum over the rows n of expert e of rows[n]^T gradient[n]
    grouped_sums     out[e] = sum over the rows n of expert e of rows[n]

The rows of expert e run from `ends[e - 1]` to `ends[e]`. Rows after the last end belong to no expert; the results for
such rows are uninitialised memory, which is never read.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moespec.backends.common.allocations import mostly_empty
from moespec.backends.common.expert_kinds import Kinds, weighted_inputs, with_kinds
from moespec.backends.common.network import Linear, check_activation, expert_weights, perceptron, second_factor
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.gathers import combine_rows, gather_rows, invert_index
from moespec.backends.torch.network import activate, expert_mlp, linear_of_experts
from moespec.backends.torch.operators import differentiable, operator
from moespec.backends.torch.slots import (
    SlotRouting,
    SoftRouting,
    check_slots,
    moe_layer,
    slot_rows,
    sparse_layer,
    token_rows,
)
from moespec.spec.checks import check_scores
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Routing
from moespec.spec.values import present

__all__ = ["moe_mlp"]


def moe_mlp(
    tokens: Tensor,
    routing: SlotRouting | SoftRouting | Routing,
    params: Mapping[str, Tensor],
    *,
    shared: Mapping[str, Tensor] | None = None,
    latent: Mapping[str, Tensor] | None = None,
    constants: Mapping[str, Tensor] | None = None,
    copies: int = 0,
    zeros: int = 0,
    weights_on: str = "output",
    gelu: str = "tanh",
    activation: str = "gelu",
    norm_epsilon: float = 1e-6,
) -> Tensor:
    """tokens (G, T, D), params as in the specification -> (G, T, D') in the dtype of `tokens`.

    If most slots are empty, only the filled slots are computed. On a GPU, skipping empty slots requires a 16-bit dtype and
    widths that are multiples of 8. Otherwise, a GPU computes all slots, since grouped products would wait for the host.
    """
    check_scores("tokens", tokens, "groups tokens width")
    check_activation(gelu, activation)
    options = {"gelu": gelu, "activation": activation}
    kinds = Kinds(shared, latent, constants, copies, zeros, weights_on, norm_epsilon)

    def mlps(x: Tensor, to: Any) -> Tensor:
        return _of_experts(x, to, params, options, weigh_inputs=weights_on == "input")

    y: Tensor = with_kinds(xp, moe_layer, expert_mlp, mlps, tokens, routing, kinds, **options)
    return y


def _of_experts(
    tokens: Tensor,
    routing: SlotRouting | SoftRouting | Routing,
    params: Mapping[str, Tensor],
    options: Mapping[str, str],
    *,
    weigh_inputs: bool,
) -> Tensor:
    """Computes the layer of the MLP experts."""

    def experts(inputs: Tensor) -> Tensor:
        return expert_mlp(inputs, params, **options)

    if isinstance(routing, SlotRouting):
        check_slots(tokens, routing)
        weights = expert_weights(xp, params, tokens.dtype, width=tokens.shape[2], experts=routing.token.shape[1])
        of: Any = activate(options["gelu"], options["activation"]), second_factor(xp, options["activation"])
        run: Any = lambda rows, linear: perceptron(rows, weights, linear, *of)  # noqa: E731  # annotated, it would not compile
        if mostly_empty(routing) and can_group(tokens, *weights["w1"].shape[1:], weights["w2"].shape[2]):
            return grouped_layer(tokens, routing, run, weigh_inputs=weigh_inputs)
        if not weigh_inputs:
            return sparse_layer(tokens, routing, lambda rows: run(rows, linear_of_experts))
    weighted = weighted_inputs(xp, routing, experts) if weigh_inputs else (routing, experts)
    result: Tensor = moe_layer(tokens, *weighted)
    return result


def affine_layer(tokens: Tensor, routing: SlotRouting, kernel: Tensor, bias: Tensor) -> Tensor:
    """Computes a layer whose expert e returns `x @ kernel[e] + bias[e]`: tokens (G, T, D), kernel (E, D, H), bias (E, H) -> (G, T, H)."""
    if can_group(tokens, *kernel.shape[1:]):
        return grouped_layer(tokens, routing, lambda rows, linear: linear(rows, kernel, bias))
    return sparse_layer(tokens, routing, lambda rows: linear_of_experts(rows, kernel, bias))


def can_group(tokens: Tensor, *widths: int) -> bool:
    """True if no grouped product makes a GPU wait for the host. On a GPU, this requires 16-bit rows and widths that are multiples of 8."""
    if tokens.device.type != "cuda":
        return True
    return _dtype(tokens) in (torch.bfloat16, torch.float16) and all(width % 8 == 0 for width in widths)


def grouped_layer(
    tokens: Tensor, routing: SlotRouting, run: Callable[[Tensor, Linear[Tensor]], Tensor], *, weigh_inputs: bool = False
) -> Tensor:
    """Computes a layer in which `run(rows, linear)` applies the experts: (N, D) -> (N, D') for the N = G T K choices.

    tokens (G, T, D) -> (G, T, D') in the dtype of `tokens`. In expert e, `linear(rows, kernel, bias)` is `rows @ kernel[e] + bias[e]`. The
    combine weights multiply the results of `run` or, if `weigh_inputs`, its rows.
    """
    groups, _, width = tokens.shape
    experts = routing.token.shape[1]
    token, slot = token_rows(routing), present("routing.slot", slot_rows(routing))
    choices, count = slot.numel(), groups * routing.tokens
    filled = token < count
    ends = filled.reshape(experts, -1).sum(dim=1).cumsum(dim=0).int()
    # The rows are the filled slots in order, so the rows of an expert are contiguous.
    row_of_slot = torch.where(filled, filled.cumsum(dim=0).int() - 1, choices)
    slot_of_row = invert_index(row_of_slot, choices)
    token_of_row = _at(token, slot_of_row, fill=count)
    row = _at(row_of_slot, slot.reshape(-1), fill=choices).reshape(slot.shape)
    rows = gather_rows(tokens.reshape(-1, width), token_of_row, row)
    weight = routing.weight.transpose(0, 1).reshape(-1, 1)
    weight = gather_rows(weight, slot_of_row, row_of_slot[:, None])
    if weigh_inputs:
        rows, weight = (rows * weight).to(rows.dtype), torch.ones_like(weight)
    outputs = run(rows, lambda x, kernel, bias: grouped_linear(x, kernel, bias, ends))
    weight = weight.reshape(-1)
    result: Tensor = combine_rows(outputs, weight, token_of_row, count, row, tokens.dtype)
    return result.reshape(groups, routing.tokens, -1)


def _at(values: Tensor, index: Tensor, *, fill: int) -> Tensor:
    """Returns `values[index]`, or `fill` where the index is one past the end."""
    return torch.cat([values, values.new_full((1,), fill)]).index_select(0, index)


def _dtype(rows: Tensor) -> torch.dtype:
    """The dtype of products of `rows`: the autocast dtype if autocast is on, else the dtype of `rows`."""
    kind = rows.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype


def grouped_linear(rows: Tensor, kernel: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """rows (N, D), kernel (E, D, H), bias (E, H) or None, ends (E,) int32 -> (N, H), in the dtype of `rows` or of autocast."""
    dtype = _dtype(rows)
    bias = None if bias is None else bias.to(dtype)
    result: Tensor = affine_rows(rows.to(dtype), kernel.to(dtype), bias, ends)
    return result


@operator
def affine_rows(rows: Tensor, kernel: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """Multiplies each row by the kernel of its expert, and adds the expert's bias, if any."""
    if rows.is_cuda:
        if bias is None:
            return _product(rows, kernel, ends)
        owner = torch.searchsorted(ends, torch.arange(len(rows), device=ends.device, dtype=ends.dtype), right=True)
        return _product(rows, kernel, ends).add_(bias.index_select(0, owner.clamp_(max=len(ends) - 1)))
    result = rows.new_empty(len(rows), kernel.shape[2])
    for expert, part in _parts(ends):
        if bias is None:
            torch.mm(rows[part], kernel[expert], out=result[part])
        else:
            torch.addmm(bias[expert], rows[part], kernel[expert], out=result[part])
    return result


@affine_rows.register_fake
def _(rows: Tensor, kernel: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], kernel.shape[2])


@operator
def grouped_rows(rows: Tensor, kernel: Tensor, ends: Tensor) -> Tensor:
    """Multiplies each row by the transposed kernel of its expert: rows (N, D), kernel (E, H, D) -> (N, H)."""
    if rows.is_cuda:
        return _product(rows, kernel.mT, ends)
    result = rows.new_empty(len(rows), kernel.shape[1])
    for expert, part in _parts(ends):
        torch.mm(rows[part], kernel[expert].T, out=result[part])
    return result


@grouped_rows.register_fake
def _(rows: Tensor, kernel: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], kernel.shape[1])


@operator
def grouped_kernels(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """rows (N, D), gradient (N, H) -> (E, D, H)."""
    if rows.is_cuda:
        return _product(rows.mT, gradient, ends)
    result = rows.new_empty(len(ends), rows.shape[1], gradient.shape[1])
    for expert, part in _parts(ends):
        torch.mm(rows[part].T, gradient[part], out=result[expert])
    return result


@grouped_kernels.register_fake
def _(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], gradient.shape[1])


@operator
def grouped_sums(rows: Tensor, ends: Tensor) -> Tensor:
    """rows (N, H) -> (E, H)."""
    if rows.is_cuda:
        return _product(rows.new_ones(len(rows), 8).mT, rows, ends)[:, 0].contiguous()
    result = rows.new_empty(len(ends), rows.shape[1])
    for expert, part in _parts(ends):
        torch.sum(rows[part], dim=0, out=result[expert])
    return result


@grouped_sums.register_fake
def _(rows: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1])


def _product(rows: Tensor, kernel: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(rows, kernel, offs=ends)


def _parts(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields each expert with the slice of its rows. Reads the values of `ends` on the host."""
    start = 0
    for expert, end in enumerate(ends.tolist()):
        yield expert, slice(start, end)
        start = end


def _affine_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, kernel, bias, ends = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(rows, kernel, ends)


def _affine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    rows, kernel, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    to_kernel = grouped_kernels(rows, gradient, ends)
    to_bias = grouped_sums(gradient, ends) if ctx.biased else None
    return grouped_rows(gradient, kernel, ends), to_kernel, to_bias, None


def _no_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pass


def _no_backward(ctx: Any, gradient: Tensor) -> None:
    raise ConfigError(
        "second derivatives are not supported when most slots of a layer are empty: set a capacity_factor near 1"
    )


grouped_rows = differentiable(grouped_rows, _no_backward, _no_setup)
grouped_kernels = differentiable(grouped_kernels, _no_backward, _no_setup)
grouped_sums = differentiable(grouped_sums, _no_backward, _no_setup)
affine_rows = differentiable(affine_rows, _affine_backward, _affine_setup)
