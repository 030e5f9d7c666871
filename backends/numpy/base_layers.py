"""The specification of BASE layers behind the batched names."""

from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.numpy.routing import SlotRouting, by_slot, groups, slot_of_choices

__all__ = ["base_assignment", "base_greedy", "base_routing"]

Array = Any


def base_assignment(scores: Array) -> spec.Assignment:
    """`spec.base_assignment`: (G, T, E) -> expert (G, T) int32, objective and gap (G,)."""
    found = [spec.base_assignment(**group) for group in groups(scores=scores)]
    expert, objective, gap = (np.stack(part) for part in zip(*found, strict=True))
    return spec.Assignment(expert.astype(np.int32), objective, gap)


def base_greedy(scores: Array) -> Array:
    """`spec.base_greedy`: (G, T, E) -> (G, T) int32."""
    return np.stack([spec.base_greedy(**group) for group in groups(scores=scores)]).astype(np.int32)


def base_routing(scores: Array, expert: Array, *, capacity: int) -> SlotRouting:
    """`spec.base_routing`: scores (G, T, E), expert (G, T)."""
    routings = [spec.base_routing(**group, capacity=capacity) for group in groups(scores=scores, expert=expert)]
    chosen = np.asarray(expert)[..., None]
    slots = [slot_of_choices(routing, chosen[g]) for g, routing in enumerate(routings)]
    return by_slot(routings)._replace(slot=np.stack(slots))
