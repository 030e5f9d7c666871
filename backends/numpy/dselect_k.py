"""The specification of DSelect-k behind the batched names. What is computed entry by entry needs no groups."""

from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.numpy.routing import SlotRouting, by_slot, groups
from moespec.spec.dselect_k import check_selectors

__all__ = [
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "smooth_step",
]

Array = Any

smooth_step = spec.smooth_step
dselect_k_selectors = spec.dselect_k_selectors
dselect_k_gate = spec.dselect_k_gate


def dselect_k_routing(gate: Array) -> SlotRouting:
    """`spec.dselect_k_routing`: gate (G, T, E)."""
    routing = by_slot([spec.dselect_k_routing(**group) for group in groups(gate=gate)])
    _, tokens, experts = np.shape(gate)
    place = np.arange(tokens)[:, None] + np.arange(experts) * tokens
    slot = np.where(np.asarray(gate).real > 0, place, experts * tokens).astype(np.int32)
    return routing._replace(slot=slot)


def dselect_k_entropy(selectors: Array) -> Array:
    """`spec.dselect_k_entropy`, its mean over the groups: (G, T, K, E), or (K, E) of a static gate -> a number."""
    return spec.dselect_k_entropy(selectors) / check_selectors(selectors)


def dselect_k_reachability(selectors: Array) -> Array:
    """`spec.dselect_k_reachability`, its mean over the groups: (G, T, K, E), or (K, E) of a static gate -> a number."""
    return spec.dselect_k_reachability(selectors) / check_selectors(selectors)
