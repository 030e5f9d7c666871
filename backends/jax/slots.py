"""Routing records on a device, and the MoE layer.

Shape comments: G groups, T tokens, E experts, C capacity, K choices, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moespec.backends.jax.arrays import Array
from moespec.backends.jax.explicit import by_groups
from moespec.backends.jax.gathers import combine_rows, dispatch_rows
from moespec.backends.jax.programs import program
from moespec.spec.checks import check_rank, check_scores, check_size
from moespec.spec.routing import Routing

__all__ = ["SlotRouting", "SoftRouting", "moe_layer"]


@partial(jax.tree_util.register_dataclass, data_fields=("token", "weight", "slot"), meta_fields=("tokens",))
@dataclass(frozen=True)
class SlotRouting:
    """A sparse routing that is stored by slot, as a JAX pytree.

    `token` (G, E, C) int32 is the token in each slot, or T for an empty slot.
    `weight` (G, E, C) in float32 or better is the combine weight of each slot, or 0 for an empty slot.
    `slot` (G, T, K) int32 is the slot `e * C + c` of each choice, or `E * C` for a dropped choice.
    `slot` is None if a token may occupy any number of slots (Expert Choice).
    `tokens` is the number of tokens T in a group.
    """

    token: Array
    weight: Array
    slot: Array | None
    tokens: int

    def dense(self) -> Routing:
        """The dispatch and combine tensors of the papers, each (G, T, E, C)."""
        return _dense(self)


@program
def _dense(routing: SlotRouting) -> Routing:
    token, tokens = routing.token, jnp.arange(routing.tokens, dtype=routing.token.dtype)
    dispatch = token[:, None] == tokens[:, None, None]
    weight = jnp.broadcast_to(routing.weight[:, None], dispatch.shape)
    return Routing(dispatch.astype(weight.dtype), jnp.where(dispatch, weight, 0))  # type: ignore[arg-type]


class SoftRouting(NamedTuple):
    """An inherently dense routing with the tensors `dispatch` and `combine`, each (G, T, E, C) in float32 or better."""

    dispatch: Array
    combine: Array

    def dense(self) -> Routing:
        """Returns both tensors in the routing record of the specification."""
        return Routing(self.dispatch, self.combine)  # type: ignore[arg-type]


def moe_layer(tokens: Array, routing: SlotRouting | SoftRouting, experts: Callable[[Array], Array]) -> Array:
    """tokens (G, T, D), function `experts` from (G, E, C, D) to (G, E, C, D') -> (G, T, D') in the dtype of `tokens`."""
    check_scores("tokens", tokens, "groups tokens width")
    tokens = jnp.asarray(tokens)
    _check_tokens(tokens, routing)
    outputs = _apply(experts, _dispatched(tokens, routing))
    return _combined(outputs, routing).astype(tokens.dtype)


@by_groups({"tokens": "group", "routing": "group"})
def _dispatched(tokens: Array, routing: SlotRouting | SoftRouting) -> Array:
    """(G, T, D) to (G, E, C, D)."""
    if not isinstance(routing, SlotRouting):
        # Uses the dtype of the tokens, so that a bfloat16 model multiplies in bfloat16. XLA adds the products in a wider dtype.
        return jnp.einsum("gtec,gtd->gecd", routing.dispatch.astype(tokens.dtype), tokens)
    groups, experts, capacity = routing.token.shape
    rows = dispatch_rows(routing.tokens, tokens, routing.token.reshape(groups, -1), routing.slot)
    return rows.reshape(groups, experts, capacity, -1)


@by_groups({"outputs": "group", "routing": "group"})
def _combined(outputs: Array, routing: SlotRouting | SoftRouting) -> Array:
    """(G, E, C, D') to (G, T, D')."""
    if not isinstance(routing, SlotRouting):
        return jnp.einsum("gtec,gecd->gtd", routing.combine.astype(outputs.dtype), outputs)
    token, weight = (each.reshape(len(outputs), -1) for each in (routing.token, routing.weight))
    return combine_rows(routing.tokens, outputs.reshape(*token.shape, -1), weight, token, routing.slot)


def _apply(experts: Callable[[Array], Array], inputs: Array) -> Array:
    outputs = experts(inputs)
    check_rank("experts", outputs, "groups experts capacity width")
    for axis in range(3):
        check_size("experts", outputs, axis, inputs.shape[axis], "the slots it was given")
    return outputs


def _check_tokens(tokens: Array, routing: SlotRouting | SoftRouting) -> None:
    groups, count = (
        (len(routing.token), routing.tokens) if isinstance(routing, SlotRouting) else routing.dispatch.shape[:2]
    )
    check_size("tokens", tokens, 0, groups, "the groups of routing")
    check_size("tokens", tokens, 1, count, "the tokens of routing")
