"""Backend functions that differ from the specification's functions by more than a groups axis."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from moespec import spec
from moespec.backends.numpy.groups import SlotRouting, SoftRouting, batched, groups
from moespec.spec.algorithms.dselect_k import check_selectors
from moespec.spec.checks import check_rank
from moespec.spec.errors import ShapeError
from moespec.spec.values import as_array

__all__ = [
    "dselect_k_entropy",
    "dselect_k_reachability",
    "dselect_k_routing",
    "moe_layer",
    "project_simplex",
    "project_sparse_simplex",
]

Array = Any


def project_simplex(values: Array, *, mass: float = 1.0) -> Array:
    """Projects each vector along the last axis onto the simplex: (..., n) -> (..., n)."""
    return _along_rows(lambda row: spec.project_simplex(row, mass=mass), values)


def project_sparse_simplex(values: Array, *, nonzeros: int, mass: float = 1.0) -> Array:
    """Projects each vector along the last axis onto simplex vectors with at most `nonzeros` nonzero entries: (..., n) -> (..., n)."""
    return _along_rows(lambda row: spec.project_sparse_simplex(row, nonzeros=nonzeros, mass=mass), values)


def _along_rows(function: Callable[[Array], Array], values: Array) -> Array:
    values = np.asarray(values)
    if values.ndim < 1 or values.size == 0:
        raise ShapeError(f"values: expected at least one value, got shape {values.shape}")
    return np.stack([function(row) for row in values.reshape(-1, values.shape[-1])]).reshape(values.shape)


def dselect_k_entropy(selectors: Array) -> Array:
    """Returns the loss, averaged over the groups, for selectors (G, T, K, E), or (K, E) for a static gate, which counts as one group."""
    return spec.dselect_k_entropy(selectors) / check_selectors(selectors)


def dselect_k_reachability(selectors: Array) -> Array:
    """Returns the loss, averaged over the groups, for selectors (G, T, K, E), or (K, E) for a static gate, which counts as one group."""
    return spec.dselect_k_reachability(selectors) / check_selectors(selectors)


def dselect_k_routing(gate: Array, *, like: Array | None = None) -> SlotRouting:
    """gate (G, T, E), or (E,) for a static gate, which is repeated for the tokens `like` (G, T, D)."""
    if np.ndim(gate) == 1 and like is not None:
        tokens = as_array("like", like, "groups tokens width")
        gate = np.broadcast_to(gate, (*tokens.shape[:2], len(gate)))
    return cast(SlotRouting, batched(spec.dselect_k_routing)(gate))


def moe_layer(tokens: Array, routing: SlotRouting | SoftRouting, experts: Callable[[Array], Array]) -> Array:
    """tokens (G, T, D), `experts` from (G, E, C, D) to (G, E, C, D') -> (G, T, D'). Calls `experts` with one group at a time."""
    check_rank("tokens", tokens, "groups tokens width")

    def experts_of_one(inputs: Array) -> Array:
        outputs = experts(inputs[None])
        check_rank("experts", outputs, "groups experts capacity width")
        return outputs[0]

    return np.stack(
        [spec.moe_layer(**group, experts=experts_of_one) for group in groups(tokens=tokens, routing=routing)]
    )
