"""Embedding of token ids: a learned vector for each entry of a vocabulary.

Ambiguity ledger

EM-1: Are embeddings multiplied by the square root of their width?
    Reading: no, embeddings are not multiplied by a factor.
        By: google-research/big_vision, big_vision/models/proj/image_text/text_transformer.py, _Model; openai/CLIP,
        clip/model.py, encode_text.
    Alternative b: yes, embeddings are multiplied by the square root of their width.
        By: Vaswani et al. 2017 (arXiv 1706.03762), section 3.4.
"""

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.numerics import Array, Shared
from moespec.spec.values import as_array, as_ids

__all__ = ["embedding"]

ALGORITHMS = (Algorithm("embedding", "Vaswani et al. 2017 (arXiv 1706.03762), section 3.4", 1, ("embedding",)),)


def embedding(ids: ArrayLike, table: Shared) -> Array:
    """Returns the vector of each token: `y[t] = table[ids[t]]`.

    The gradient of a table row is the sum of the gradients of all tokens whose id selects the row.

    Args:
        ids: (tokens,) integers, at least 0 and less than the number of rows of `table`.
        table: (ids, width).

    Returns:
        y, (tokens, width).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.4, without the factor (reading EM-1).

    >>> embedding([2, 0, 2], [[0.5, 1.0], [7.0, 7.0], [-1.0, 3.0]]).tolist()
    [[-1.0, 3.0], [0.5, 1.0], [-1.0, 3.0]]
    """
    table = as_array("table", table, "ids width")
    rows: Array = table[as_ids("ids", ids, "tokens", below=len(table))]
    return rows
