"""Hash layers by the specification, group by group. Tables are the specification's own functions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.numpy.routing import SlotRouting, by_slot, groups, stacked

__all__ = ["hash_routing", "multi_hash_mlp", "pair_ids", "patch_codes", "position_ids", "previous_ids"]

Array = Any


def patch_codes(patches: Array, codebook: Array) -> Array:
    """`spec.patch_codes`: patches (G, T, P), codebook (V, P) -> (G, T) int32."""
    return _ids([spec.patch_codes(**group, codebook=codebook) for group in groups(patches=patches)])


def position_ids(tokens: Array) -> Array:
    """`spec.position_ids`: (G, T, D) -> (G, T) int32."""
    return _ids([spec.position_ids(**group) for group in groups(tokens=tokens)])


def previous_ids(ids: Array) -> Array:
    """`spec.previous_ids`: (G, T) -> (G, T) int32."""
    return _ids([spec.previous_ids(**group) for group in groups(ids=ids)])


def pair_ids(first: Array, second: Array, *, vocabulary: int) -> Array:
    """`spec.pair_ids`: (G, T) twice -> (G, T) int32."""
    return _ids([spec.pair_ids(**group, vocabulary=vocabulary) for group in groups(first=first, second=second)])


def hash_routing(
    ids: Array, table: Array, *, experts: int, capacity: int | None = None, like: Array | None = None
) -> SlotRouting:
    """`spec.hash_routing`: ids (G, T), table (V,). Weights are in float64, whatever they should be like."""
    return by_slot(
        [spec.hash_routing(**group, table=table, experts=experts, capacity=capacity) for group in groups(ids=ids)]
    )


def multi_hash_mlp(
    tokens: Array, ids: Array, tables: Array, params: Mapping[str, Array], *, activation: str = "relu"
) -> Array:
    """`spec.multi_hash_mlp`: tokens (G, T, D), ids (G, T), tables (N, V) -> (G, T, D')."""
    return stacked(
        [
            spec.multi_hash_mlp(**group, tables=tables, params=params, activation=activation)
            for group in groups(tokens=tokens, ids=ids)
        ]
    )


def _ids(results: list[Array]) -> Array:
    return np.stack(results).astype(np.int32)
