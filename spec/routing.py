"""The types that all routers share: routings, and the inputs and outputs of a router.

Axis names: `tokens, experts, capacity, width, hidden, choices` (T, E, C, D, H, K in shape comments). In the
specification an array is one routing group. A backend adds a leading `groups` axis (G).
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array as Array

__all__ = ["Noise", "RouterOutput", "Routing", "StateSpec", "slot_tokens"]

Params = dict[str, Any]
State = dict[str, Any]
"""The arrays, by name, that a router keeps from step to step and that no optimiser changes."""
Summed = Annotated[NDArray[Any], "summed over the groups"]
"""The type of an additive result: a backend returns the sum over the groups."""


class Routing(NamedTuple):
    """The two tensors that a router computes, each of shape `(tokens, experts, capacity)`.

    `dispatch[t, e, c]` is the weight of token `t` in slot `c` of expert `e`. `combine[t, e, c]` is the weight with
    which the output of that slot enters the output of token `t`. For sparse routers `dispatch` is 0 or 1 and
    `combine = dispatch * score`.
    """

    dispatch: NDArray[Any]
    combine: NDArray[Any]


DenseRouting = Annotated[Routing, "dense by nature"]
"""The type of a result whose slots mix tokens, so it cannot be stored by slot."""


def slot_tokens(routing: Routing) -> NDArray[np.intp]:
    """Returns the token in each slot of a sparse routing.

    Args:
        routing: of (tokens, experts, capacity); a slot holds at most one token.

    Returns:
        (experts, capacity) integers: the index of the token, or T for an empty slot.

    Raises:
        ContractError: a slot of `routing` holds several tokens, as in Soft MoE.

    >>> dispatch = np.array([[[1.0, 0.0]], [[0.0, 0.0]]])  # two tokens, one expert, two slots
    >>> slot_tokens(Routing(dispatch, dispatch)).tolist()
    [[0, 2]]
    """
    occupied = routing.dispatch.real > 0
    if (occupied.sum(axis=0) > 1).any():
        raise ContractError("routing: expected sparse routing, but a slot holds several tokens")
    tokens = len(occupied)
    return np.where(occupied.any(axis=0), np.tensordot(np.arange(tokens), occupied, axes=1), tokens)


class RouterOutput(NamedTuple):
    """The output of a router: the routing, its auxiliary losses, metrics, and statistics.

    `losses` holds the *weighted* terms of the total loss (their sum is added to the main loss). `metrics` holds unweighted
    scalars and per-expert vectors for logs. `statistics` holds the inputs of the router's state update. Statistics are
    sums, so those of groups, micro-batches and devices add up.
    """

    routing: Any
    losses: dict[str, Any]
    metrics: dict[str, Any]
    statistics: dict[str, Any] = {}  # noqa: RUF012


@dataclass(frozen=True)
class Noise:
    """The noise that a router takes in training.

    shape: the shape of the array for one routing group.
    interval: the ends of the interval for uniform entries; None for standard normal entries.
    """

    shape: tuple[int, ...]
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class StateSpec:
    """One array of a router's initial state: its shape, and the value that all entries have."""

    shape: tuple[int, ...]
    value: float = 0.0
