"""A fused layer of Expert Choice in Triton, forward and backward, as an adapter: `x` goes in, `y` comes out.

A program computes the perceptron of one expert for one group: it gathers the tokens of the expert, and keeps the hidden
activations, a block of the hidden width at a time, to itself. The backward pass computes them again.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl

from moespec.backends.torch import from_numpy, to_numpy

__all__ = ["from_numpy", "layer", "to_numpy"]

BEND = 1.0
"""The factor of the part of GELU's slope that tests take away: that of tanh."""


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def inner(z):  # type: ignore[no-untyped-def]
    return 0.7978845608028654 * (z + 0.044715 * z * z * z)


@triton.jit
def forward(x, token, w1, b1, w2, b2, y, T, E, C, D, H, ROWS: tl.constexpr, WIDTH: tl.constexpr, DEEP: tl.constexpr,
            WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """y (G, E, C, D), the outputs of the experts, from x (G, T, D) and token (G, E, C)."""
    group, expert = tl.program_id(0), tl.program_id(1)
    c, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    slot = (group * E + expert) * C + c
    rows, columns = c[:, None] < C, d[None, :] < D
    place = tl.load(token + slot, mask=c < C, other=0)
    inputs = tl.load(x + (group * T + place)[:, None] * D + d[None, :], mask=rows & columns, other=0).to(WIDE)
    total = tl.zeros((ROWS, WIDTH), WIDE) + tl.load(b2 + expert * D + d, mask=d < D, other=0).to(WIDE)[None, :]
    for start in range(0, H, DEEP):
        h = start + tl.arange(0, DEEP)
        first = tl.load(w1 + (expert * D + d[:, None]) * H + h[None, :], mask=d[:, None] < D, other=0).to(WIDE)
        second = tl.load(w2 + (expert * H + h[:, None]) * D + d[None, :], mask=columns, other=0).to(WIDE)
        z = (
            tl.dot(inputs, first, input_precision="ieee", out_dtype=WIDE)
            + tl.load(b1 + expert * H + h).to(WIDE)[None, :]
        )
        active = z / 2 * (1 + tanh(inner(z)))
        total += tl.dot(active, second, input_precision="ieee", out_dtype=WIDE)
    tl.store(y + slot[:, None] * D + d[None, :], total, mask=rows & columns)


@triton.jit
def backward(x, token, w1, b1, w2, by_y, by_x, by_w1, by_b1, by_w2, bend, T, E, C, D, H, ROWS: tl.constexpr,
             WIDTH: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """by_x (G, E, C, D), and by_w1, by_b1, by_w2 with a leading axis of groups, from by_y (G, E, C, D)."""
    group, expert = tl.program_id(0), tl.program_id(1)
    c, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    slot, own = (group * E + expert) * C + c, group * E + expert
    rows, columns = c[:, None] < C, d[None, :] < D
    place = tl.load(token + slot, mask=c < C, other=0)
    inputs = tl.load(x + (group * T + place)[:, None] * D + d[None, :], mask=rows & columns, other=0).to(WIDE)
    outer = tl.load(by_y + slot[:, None] * D + d[None, :], mask=rows & columns, other=0).to(WIDE)
    total = tl.zeros((ROWS, WIDTH), WIDE)
    for start in range(0, H, DEEP):
        h = start + tl.arange(0, DEEP)
        high, wide = d[:, None] < D, h[None, :] < H
        first = tl.load(w1 + (expert * D + d[:, None]) * H + h[None, :], mask=high, other=0).to(WIDE)
        second = tl.load(w2 + (expert * H + h[:, None]) * D + d[None, :], mask=columns, other=0).to(WIDE)
        z = (
            tl.dot(inputs, first, input_precision="ieee", out_dtype=WIDE)
            + tl.load(b1 + expert * H + h).to(WIDE)[None, :]
        )
        bent = tanh(inner(z))
        slope = (1 + bent) / 2 + bend * z / 2 * (1 - bent * bent) * 0.7978845608028654 * (1 + 3 * 0.044715 * z * z)
        by_z = tl.where(rows, tl.dot(outer, tl.trans(second), input_precision="ieee", out_dtype=WIDE) * slope, 0)
        active = tl.where(rows, z / 2 * (1 + bent), 0)
        total += tl.dot(by_z, tl.trans(first), input_precision="ieee", out_dtype=WIDE)
        tl.store(by_w1 + (own * D + d[:, None]) * H + h[None, :],
                 tl.dot(tl.trans(inputs), by_z, input_precision="ieee", out_dtype=WIDE), mask=high & wide)  # fmt: skip
        tl.store(by_b1 + own * H + h, tl.sum(by_z, axis=0))
        tl.store(by_w2 + (own * H + h[:, None]) * D + d[None, :],
                 tl.dot(tl.trans(active), outer, input_precision="ieee", out_dtype=WIDE), mask=columns)  # fmt: skip
    tl.store(by_x + slot[:, None] * D + d[None, :], total, mask=rows & columns)


class Experts(torch.autograd.Function):
    """The outputs of the experts (G, E, C, D) for the tokens in their slots, in float32 or better."""

    @staticmethod
    def forward(context: Any, x: Any, token: Any, *weights: Any) -> Any:
        context.save_for_backward(x, token, *weights)
        y = x.new_empty((*token.shape, x.shape[2]), dtype=torch.promote_types(x.dtype, torch.float32))
        forward[token.shape[:2]](x, token, *weights, y, **sizes(x, token, weights[0]))
        return y

    @staticmethod
    def backward(context: Any, by_y: Any) -> Any:
        x, token, *weights = context.saved_tensors
        w1, b1, w2, _ = weights
        own = [torch.empty((len(x), *w.shape), dtype=by_y.dtype, device=x.device) for w in (w1, b1, w2)]
        slots, by_y = torch.empty_like(by_y), by_y.contiguous()
        backward[token.shape[:2]](x, token, w1, b1, w2, by_y, slots, *own, BEND, **sizes(x, token, w1))
        place = token[..., None].expand_as(slots).flatten(1, 2).long()
        by_x = torch.zeros(x.shape, dtype=by_y.dtype, device=x.device).scatter_add(1, place, slots.flatten(1, 2))
        sums = [*(each.sum(0) for each in own), by_y.sum((0, 2))]
        return by_x.to(x.dtype), None, *(total.to(x.dtype) for total in sums)


def sizes(x: Any, token: Any, w1: Any) -> dict[str, Any]:
    """The sizes of the arrays and of the blocks."""
    _, experts, slots = token.shape
    width, hidden = w1.shape[1:]
    rows, wide = max(16, triton.next_power_of_2(slots)), max(16, triton.next_power_of_2(width))
    exact = tl.float64 if x.dtype == torch.float64 else tl.float32
    blocks = {"ROWS": rows, "WIDTH": wide, "DEEP": 64, "WIDE": exact}
    return {"T": x.shape[1], "E": experts, "C": slots, "D": width, "H": hidden, **blocks}


def layer(x: Any, params: Any, options: Any) -> Any:
    """The layer; Expert Choice by the softmax alone, of hidden widths that are multiples of 64."""
    others = ("cap", "eval_capacity_factor", "slots_per_expert")
    if options["router"] != "softmax_expert_choice" or any(options[name] is not None for name in others):
        raise NotImplementedError("only softmax_expert_choice, with one capacity factor and no cap")
    if options["multiple_of"] > 1 or params["experts"]["w1"].shape[2] % 64:
        raise NotImplementedError("only hidden widths that are multiples of 64, and any number of slots")
    slots = math.ceil(options["tokens"] * options["capacity_factor"] / options["experts"])
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = torch.softmax(x.to(wide) @ params["router"]["kernel"].to(wide), dim=-1).mT
    weight, token = (
        array[..., :slots].contiguous() for array in torch.sort(scores, dim=-1, descending=True, stable=True)
    )
    y = Experts.apply(x, token.int(), *(params["experts"][name] for name in ("w1", "b1", "w2", "b2")))
    weighted = (weight[..., None] * y).flatten(1, 2)
    place = token[..., None].expand_as(y).flatten(1, 2)
    return torch.zeros(x.shape, dtype=wide, device=x.device).scatter_add(1, place, weighted).to(x.dtype)
