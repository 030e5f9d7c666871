"""Hash layers: routing by a table of expert numbers, and MultiHash.

Shape comments: G groups, T tokens, V ids, N hashes, E experts, D width, H hidden. Ids are int32. The functions do not
check the values of ids and tables. Results are undefined for an id outside the table and for an invalid expert number in a table.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from moespec.backends.common.allocations import slots_of_requests
from moespec.backends.common.network import multi_hash_weights
from moespec.backends.jax import namespace as xp
from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.explicit import by_groups, is_split
from moespec.backends.jax.grouped import affine_layer
from moespec.backends.jax.network import gelu
from moespec.backends.jax.slots import SlotRouting
from moespec.spec.checks import check_at_least, check_capacity, check_integers
from moespec.spec.errors import ConfigError

__all__ = ["hash_routing", "multi_hash_mlp"]


def hash_routing(
    ids: Array, table: Array, *, experts: int, capacity: int | None = None, like: Array | None = None
) -> SlotRouting:
    """ids (G, T), table (V,) -> SlotRouting, with weights in the wider of float32 and the dtype of `like`."""
    experts = check_at_least("experts", experts, 1)
    check_integers("ids", ids, "groups tokens")
    check_integers("table", table, "ids")
    capacity = ids.shape[1] if capacity is None else check_capacity(capacity)
    dtype = "float32" if like is None else wide(like).dtype.name
    return _routing_of_ids(ids, table, experts=experts, capacity=capacity, dtype=dtype)


@by_groups({"ids": "group"})
def _routing_of_ids(ids: Array, table: Array, *, experts: int, capacity: int, dtype: str) -> SlotRouting:
    requests = jnp.asarray(table).astype(jnp.int32)[ids]
    slot = slots_of_requests(xp, requests, experts, capacity)  # type: ignore[misc]
    token = xp.invert_index(slot, experts * capacity).reshape(-1, experts, capacity)
    weight = (token < ids.shape[1]).astype(dtype)
    return SlotRouting(token, weight, slot[..., None], ids.shape[1])


def multi_hash_mlp(
    tokens: Array, ids: Array, tables: Array, params: Mapping[str, Array], *, activation: str = "relu"
) -> Array:
    """tokens (G, T, D), ids (G, T), tables (N, V) -> (G, T, D') in the dtype of `tokens`.

    Each hash dispatches the tokens to segments of the experts. Raises ConfigError if experts are split over a mesh,
    because this layer mixes all experts.
    """
    if is_split(params):
        raise ConfigError("params: the experts are split over a mesh; MultiHash needs all experts on each device")
    w1, b1, w2, b2 = multi_hash_weights(xp, tokens, ids, tables, params, activation)  # type: ignore[misc]
    hashes = tables.shape[0]
    routings = [hash_routing(ids, tables[m], experts=w1.shape[0]) for m in range(hashes)]

    def segments(rows: Array, kernel: Array, bias: Array) -> Array:
        kernels, biases = jnp.split(kernel, hashes, axis=2), jnp.split(bias, hashes, axis=1)
        parts = [affine_layer(rows, *segment) for segment in zip(routings, kernels, biases, strict=True)]
        return jnp.concatenate(parts, axis=2)

    inner = segments(jnp.asarray(tokens), w1, b1)
    active = jax.nn.relu(inner) if activation == "relu" else gelu(inner, form=activation)
    return segments(active, w2, b2)
