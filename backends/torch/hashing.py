"""Hash layers: routing by a table of expert numbers, and MultiHash.

Ids are int32 and are not checked: an id outside the table causes a device error or an undefined result.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from moespec.backends.common.allocations import slots_of_requests
from moespec.backends.common.network import multi_hash_weights
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.arrays import wide
from moespec.backends.torch.gathers import invert_index
from moespec.backends.torch.grouped import affine_layer
from moespec.backends.torch.network import gelu
from moespec.backends.torch.slots import SlotRouting
from moespec.spec.checks import check_at_least, check_capacity, check_integers

__all__ = ["hash_routing", "multi_hash_mlp"]


def hash_routing(
    ids: Tensor, table: Tensor, *, experts: int, capacity: int | None = None, like: Tensor | None = None
) -> SlotRouting:
    """ids (G, T), table (V,) -> SlotRouting, with weights in the dtype of `like` or float32, whichever is wider."""
    experts = check_at_least("experts", experts, 1)
    check_integers("ids", ids, "groups tokens")
    check_integers("table", table, "ids")
    groups, tokens = ids.shape
    capacity = tokens if capacity is None else check_capacity(capacity)
    slot = slots_of_requests(xp, table.int()[ids.long()], experts, capacity)
    token = invert_index(slot, experts * capacity).int().reshape(groups, experts, capacity)
    weight = (token < tokens).to(torch.float32 if like is None else wide(like.dtype))
    return SlotRouting(token, weight, slot[:, :, None], tokens)


def multi_hash_mlp(
    tokens: Tensor, ids: Tensor, tables: Tensor, params: Mapping[str, Tensor], *, activation: str = "relu"
) -> Tensor:
    """tokens (G, T, D), ids (G, T), tables (N, V) -> (G, T, D') in the dtype of `tokens`.

    Hash m selects an expert for each token. Segment m of the token's MLP is segment m of this expert's weights.
    """
    w1, b1, w2, b2 = multi_hash_weights(xp, tokens, ids, tables, params, activation)
    hashes = tables.shape[0]
    routings = [hash_routing(ids, tables[m], experts=w1.shape[0]) for m in range(hashes)]

    def segments(rows: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        kernels, biases = kernel.chunk(hashes, 2), bias.chunk(hashes, 1)
        return torch.cat(
            [affine_layer(rows, *segment) for segment in zip(routings, kernels, biases, strict=True)], dim=2
        )

    inner = segments(tokens, w1, b1)
    return segments(torch.relu(inner) if activation == "relu" else gelu(inner, form=activation), w2, b2)
