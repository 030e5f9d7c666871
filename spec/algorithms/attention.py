"""Softmax attention of a transformer block, for one image or text.

Ambiguity ledger

NW-3: Which keys does a query attend to in causal attention if there are more keys than queries?
    Reading: none; an error is raised, because each token of a sequence has one query and one key.
    Alternative b: query i attends to keys 0 to i (aligned at the first key).
        By: pytorch/pytorch, torch/nn/functional.py, scaled_dot_product_attention (is_causal).
    Alternative c: query i attends to all keys except the last `queries - 1 - i` (aligned at the last key).
        By: Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py, flash_attn_func (since 2.1).
"""

import numpy as np

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_same_shape, check_size
from moespec.spec.numerics import Array, softmax
from moespec.spec.values import as_array

__all__ = ["attention"]


def attention(query: ArrayLike, key: ArrayLike, value: ArrayLike, *, causal: bool = False) -> Array:
    """Computes `softmax(q k^T / sqrt(dim)) v` for each head, with the softmax over keys.

    Args:
        query: (queries, heads, dim).
        key: (keys, heads, dim).
        value: (keys, heads, dim).
        causal: whether query i attends only to keys 0 to i. Causal attention requires equal numbers of keys and queries.

    Returns:
        (queries, heads, dim).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), eq. (1); causal: section 3.2.3.

    >>> attention([[[0.0]]], [[[1.0]], [[2.0]]], [[[4.0]], [[6.0]]]).tolist()
    [[[5.0]]]
    >>> attention([[[0.0]], [[0.0]]], [[[1.0]], [[2.0]]], [[[4.0]], [[6.0]]], causal=True).tolist()
    [[[4.0]], [[5.0]]]
    """
    query = as_array("query", query, "queries heads dim")
    key = as_array("key", key, "keys heads dim")
    value = as_array("value", value, "keys heads dim")
    check_size("key", key, 1, query.shape[1], "the heads of query")
    check_size("key", key, 2, query.shape[2], "the dim of query")
    check_same_shape("value", value, "key", key)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[2])
    if causal:
        check_size("key", key, 0, len(query), "the number of queries, since attention is causal")
        scores = np.where(np.tri(len(query), dtype=bool), scores, -np.inf)
    return np.einsum("hqk,khd->qhd", softmax(scores), value)
