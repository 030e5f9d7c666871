"""Hash layers: token ids, the routing that a table gives, and MultiHash. Tables are made by the specification.

Ids are int32. Their values are not checked: one that the table does not have is an error of the device, or undefined.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from moespec.backends.torch.allocations import request_slots
from moespec.backends.torch.arrays import cast, full_precision, wide, widen
from moespec.backends.torch.grouped import affine_layer
from moespec.backends.torch.network import expert_weights, gelu
from moespec.backends.torch.rows import invert_index
from moespec.backends.torch.slots import SlotRouting
from moespec.spec.checks import (
    check_at_least,
    check_capacity,
    check_integers,
    check_option,
    check_same_shape,
    check_scores,
    check_segments,
    check_size,
)
from moespec.spec.hash_layers import check_tables
from moespec.spec.token_ids import EPSILON

__all__ = [
    "hash_routing",
    "hash_table_of",
    "multi_hash_mlp",
    "pair_ids",
    "patch_codes",
    "position_ids",
    "previous_ids",
]


def patch_codes(patches: Tensor, codebook: Tensor) -> Tensor:
    """patches (G, T, P), codebook (V, P) -> (G, T) int32."""
    check_scores("patches", patches, "groups tokens pixels")
    check_scores("codebook", codebook, "codes pixels")
    check_size("codebook", codebook, 1, patches.shape[2], "the pixels of patches")
    pixels = widen(patches.detach())
    words = codebook.detach().to(pixels.dtype)
    centred = pixels - pixels.mean(dim=2, keepdim=True)
    normalized = centred / torch.sqrt(centred.square().mean(dim=2, keepdim=True) + EPSILON)
    with full_precision(pixels):
        nearest = normalized @ words.mT - 0.5 * words.square().sum(dim=1)
    # The first of equal maxima, which `argmax` does not promise.
    return (nearest == nearest.amax(dim=2, keepdim=True)).int().argmax(dim=2).int()


def position_ids(tokens: Tensor) -> Tensor:
    """tokens (G, T, D) -> (G, T) int32."""
    check_scores("tokens", tokens, "groups tokens width")
    return torch.arange(tokens.shape[1], dtype=torch.int32, device=tokens.device).expand(tokens.shape[0], -1)


def previous_ids(ids: Tensor) -> Tensor:
    """ids (G, T) -> (G, T) int32."""
    check_integers("ids", ids, "groups tokens")
    return F.pad(ids.int()[:, :-1], (1, 0))


def pair_ids(first: Tensor, second: Tensor, *, vocabulary: int) -> Tensor:
    """ids (G, T) twice -> (G, T) int32."""
    vocabulary = check_at_least("vocabulary", vocabulary, 1)
    check_integers("first", first, "groups tokens")
    check_integers("second", second, "groups tokens")
    check_same_shape("second", second, "first", first)
    return first.int() * vocabulary + second.int()


def hash_table_of(tables: Tensor, *, hash: int = 0) -> Tensor:
    """tables (hashes, ids) -> (ids,) int32, without gradient."""
    check_tables(tables, hash)
    return cast(tables, "int32")[hash]


def hash_routing(
    ids: Tensor, table: Tensor, *, experts: int, capacity: int | None = None, like: Tensor | None = None
) -> SlotRouting:
    """ids (G, T), table (V,) -> SlotRouting, its weights in the dtype of `like` or float32, the wider of the two."""
    experts = check_at_least("experts", experts, 1)
    check_integers("ids", ids, "groups tokens")
    check_integers("table", table, "ids")
    groups, tokens = ids.shape
    capacity = tokens if capacity is None else check_capacity(capacity)
    slot = request_slots(table.int()[ids.long()], experts, capacity)
    token = invert_index(slot, experts * capacity).int().reshape(groups, experts, capacity)
    weight = (token < tokens).to(torch.float32 if like is None else wide(like.dtype))
    return SlotRouting(token, weight, slot[:, :, None], tokens)


def multi_hash_mlp(
    tokens: Tensor, ids: Tensor, tables: Tensor, params: Mapping[str, Tensor], *, activation: str = "relu"
) -> Tensor:
    """tokens (G, T, D), ids (G, T), tables (N, V) -> (G, T, D') in the dtype of `tokens`.

    For each hash the tokens are dispatched to the segments of their experts.
    """
    check_option("activation", activation, ("relu", "tanh", "erf"))
    check_scores("tokens", tokens, "groups tokens width")
    check_integers("ids", ids, "groups tokens")
    check_integers("tables", tables, "hashes ids")
    check_size("ids", ids, 1, tokens.shape[1], "the number of tokens")
    hashes = tables.shape[0]
    w1, b1, w2, b2 = expert_weights(params, tokens.dtype, width=tokens.shape[2])
    (experts, _, hidden), output = w1.shape, w2.shape[2]
    check_segments(hashes, hidden=hidden, output=output)
    routings = [hash_routing(ids, tables[m], experts=experts) for m in range(hashes)]

    def segments(rows: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        kernels, biases = kernel.chunk(hashes, 2), bias.chunk(hashes, 1)
        return torch.cat(
            [affine_layer(rows, *segment) for segment in zip(routings, kernels, biases, strict=True)], dim=2
        )

    inner = segments(tokens, w1, b1)
    return segments(torch.relu(inner) if activation == "relu" else gelu(inner, form=activation), w2, b2)
