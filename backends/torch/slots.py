"""Routings that are stored by slot, and the layer that sends tokens through the slots.

A sparse routing fills a slot with at most one token, so a routing stores a token and a weight for each slot. Only
`dense()` creates arrays of size tokens x experts x capacity. Soft routing is inherently dense.

Shapes: G groups, T tokens, E experts, C capacity, K choices, D width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moespec.backends.torch.gathers import combine_rows, gather_rows
from moespec.spec.checks import check_rank, check_same_shape, check_scores, check_size
from moespec.spec.errors import ShapeError
from moespec.spec.routing import Routing

__all__ = ["SlotRouting", "SoftRouting", "moe_layer"]


class SlotRouting(NamedTuple):
    """A sparse routing.

    token: (G, E, C) int32, the token in each slot; `tokens` for an empty slot.
    weight: (G, E, C), the combine weight of each slot in float32 or better; 0 for an empty slot.
    slot: (G, T, K) int32, the slot `e * C + c` of each choice of a token, `E * C` for a choice that was dropped; None
        if a token may be in any number of slots.
    tokens: T.
    """

    token: Tensor
    weight: Tensor
    slot: Tensor | None
    tokens: int

    def dense(self) -> Routing:
        """The tensors of the paper, `dispatch` and `combine`, each (G, T, E, C) in the dtype of `weight`."""
        index = torch.arange(self.tokens, device=self.token.device, dtype=self.token.dtype)
        dispatch: Any = (self.token[:, None] == index[:, None, None]).to(self.weight.dtype)
        return Routing(dispatch, dispatch * self.weight[:, None])


class SoftRouting(NamedTuple):
    """A dense routing: `dispatch` and `combine`, each (G, T, E, C) in float32 or better."""

    dispatch: Tensor
    combine: Tensor

    def dense(self) -> Routing:
        """The same tensors."""
        tensors: Any = self
        return Routing(*tensors)


def moe_layer(
    tokens: Tensor, routing: SlotRouting | SoftRouting | Routing, experts: Callable[[Tensor], Tensor]
) -> Tensor:
    """tokens (G, T, D), `experts` from (G, E, C, D) to (G, E, C, D') -> (G, T, D') in the dtype of `tokens`.

    For a `SlotRouting`, inputs are gathered with `token`. Outputs are combined in float32 or better: with a weighted gather by `slot`, or
    with a sum in a fixed order if a token may be in any number of slots. A dense routing is cast to the dtype of the tokens or outputs for
    matrix products. Products of 16-bit numbers are added in float32.
    """
    check_scores("tokens", tokens, "groups tokens width")
    if isinstance(routing, SlotRouting):
        check_slots(tokens, routing)
        groups, number, capacity = routing.token.shape

        def run(rows: Tensor) -> Tensor:
            inputs = rows.reshape(number, groups, capacity, -1).transpose(0, 1)
            return _checked(experts(inputs), inputs).transpose(0, 1).reshape(number, groups * capacity, -1)

        return sparse_layer(tokens, routing, run)
    _check_dense(tokens, routing.dispatch, routing.combine)
    inputs = _dispatch_dense(tokens, routing.dispatch)
    return _combine_dense(_checked(experts(inputs), inputs), routing.combine).to(tokens.dtype)


def _checked(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Returns the outputs of the experts. Raises ShapeError unless they have the slots of the inputs."""
    check_rank("experts", outputs, "groups experts capacity width")
    for axis in range(3):
        check_size("experts", outputs, axis, inputs.shape[axis], "the slots it was given")
    return outputs


def check_slots(tokens: Tensor, routing: SlotRouting) -> None:
    check_rank("routing.token", routing.token, "groups experts capacity")
    check_same_shape("routing.weight", routing.weight, "routing.token", routing.token)
    check_size("routing.token", routing.token, 0, tokens.shape[0], "the groups of tokens")
    if routing.tokens != tokens.shape[1]:
        raise ShapeError(f"routing.tokens: the routing is for {routing.tokens} tokens, got {tokens.shape[1]} tokens")
    if routing.slot is not None:
        check_rank("routing.slot", routing.slot, "groups tokens choices")


def _check_dense(tokens: Tensor, dispatch: Any, combine: Any) -> None:
    check_scores("routing.dispatch", dispatch, "groups tokens experts capacity")
    check_same_shape("routing.combine", combine, "routing.dispatch", dispatch)
    check_size("routing.dispatch", dispatch, 0, tokens.shape[0], "the groups of tokens")
    check_size("routing.dispatch", dispatch, 1, tokens.shape[1], "the number of tokens")


# Slots. Rows of tokens are in the order (g, t), and rows of slots in the order (e, g, c). All slots of an expert are
# therefore contiguous, and the matrix products of the experts need no further copy.


def sparse_layer(tokens: Tensor, routing: SlotRouting, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Computes a layer with a checked routing, where `run` maps the rows of each expert: (E, G * C, D) -> (E, G * C, D')."""
    (groups, experts, capacity), width = routing.token.shape, tokens.shape[2]
    token, slot = token_rows(routing), slot_rows(routing)
    rows = gather_rows(tokens.reshape(-1, width), token, slot)
    outputs = run(rows.reshape(experts, groups * capacity, width))
    weight = routing.weight.transpose(0, 1).reshape(-1)
    rows = outputs.reshape(experts * groups * capacity, -1)
    result: Tensor = combine_rows(rows, weight, token, groups * routing.tokens, slot, tokens.dtype)
    return result.reshape(groups, routing.tokens, -1)


def token_rows(routing: SlotRouting) -> Tensor:
    """(E * G * C,): the row of the token in each slot, or the number of rows for an empty slot."""
    groups = routing.token.shape[0]
    first = _first(groups, routing.tokens, routing.token)
    rows = torch.where(routing.token < routing.tokens, routing.token + first, groups * routing.tokens)
    return rows.transpose(0, 1).reshape(-1)


def _first(groups: int, size: int, like: Tensor) -> Tensor:
    """(G, 1, 1): the first row of each group, for groups of `size` rows."""
    return torch.arange(groups, device=like.device, dtype=torch.int32)[:, None, None] * size


def slot_rows(routing: SlotRouting) -> Tensor | None:
    """(G * T, K): the row of the slot of each choice, or the number of rows for a dropped choice. None without `slot`."""
    if routing.slot is None:
        return None
    groups, experts, capacity = routing.token.shape
    first = _first(groups, capacity, routing.token)
    # The slot e * C + c of group g has the row e * G * C + g * C + c. For a dropped choice, e is E.
    rows = routing.slot + routing.slot // capacity * ((groups - 1) * capacity) + first
    return rows.clamp(max=experts * groups * capacity).flatten(0, 1)


# Dense.


def _dispatch_dense(tokens: Tensor, dispatch: Any) -> Tensor:
    """(G, T, D) to (G, E, C, D)."""
    groups, _, experts, capacity = dispatch.shape
    weights: Tensor = dispatch.reshape(groups, tokens.shape[1], -1).to(tokens.dtype)
    # In this order, the gradient of `weights` has the layout of `weights`, so no copy of it is made.
    return (tokens.mT @ weights).mT.reshape(groups, experts, capacity, -1)


def _combine_dense(outputs: Tensor, combine: Any) -> Tensor:
    """(G, E, C, D) to (G, T, D)."""
    groups, tokens, experts, capacity = combine.shape
    weights: Tensor = combine.reshape(groups, tokens, -1).to(outputs.dtype)
    return weights @ outputs.reshape(groups, experts * capacity, -1)
