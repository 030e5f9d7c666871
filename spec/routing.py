"""The types that all routers share: routings, and the inputs and outputs of a router.

Axis names: `tokens, experts, capacity, width, hidden, choices` (T, E, C, D, H, K in shape comments). In the
specification, an array holds one routing group. In a backend, arrays have a leading `groups` axis (G).
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
"""The state of a router: named arrays that the router, not the optimiser, updates from step to step."""
Summed = Annotated[NDArray[Any], "summed over the groups"]
"""The type of a result that a backend sums over the groups."""


class Routing(NamedTuple):
    """The two tensors that a router computes, each of shape `(tokens, experts, capacity)`.

    `dispatch[t, e, c]` is the weight of token `t` in slot `c` of expert `e`. `combine[t, e, c]` is the weight of
    the output of this slot in the output of token `t`. In sparse routers, `dispatch` is 0 or 1, and
    `combine = dispatch * score`.
    """

    dispatch: NDArray[Any]
    combine: NDArray[Any]


DenseRouting = Annotated[Routing, "dense by nature"]
"""The type of a routing whose slots mix tokens, so that storing one token per slot is not enough."""


def slot_tokens(routing: Routing) -> NDArray[np.intp]:
    """Returns the token in each slot of a sparse routing.

    Args:
        routing: tensors (tokens, experts, capacity), with at most one token in each slot.

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

    `losses` holds the *weighted* auxiliary losses, whose sum is added to the main loss. `metrics` holds unweighted
    scalars and per-expert vectors for logs. `statistics` holds the inputs of the router's state update. The
    statistics of all groups, micro-batches and devices are added before the update.
    """

    routing: Any
    losses: dict[str, Any]
    metrics: dict[str, Any]
    statistics: dict[str, Any] = {}  # noqa: RUF012


@dataclass(frozen=True)
class Noise:
    """The shape and the distribution of the noise that a router uses in training.

    shape: the shape of the array for one routing group.
    interval: the bounds of uniform entries, or None for standard normal entries.
    """

    shape: tuple[int, ...]
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class StateSpec:
    """One array in the initial state of a router: the shape, and the value of all entries."""

    shape: tuple[int, ...]
    value: float = 0.0
