"""The token ids that hash layers map to experts. The ids are computed before any layer runs.

| here | Hash (arXiv 2106.04426) |
|---|---|
| `ids` (T,) | the token x_t, an entry of the vocabulary |
| `pair_ids(previous_ids(ids), ids)` | bigram hash |

In vision, an id is a property of the input image: the position of a patch, or the codeword nearest to the pixels of a patch.

Ambiguity ledger

TI-1: What is a token id in an image?
    Reading: the codeword nearest to the normalised pixels of the patch, or the position of the patch. The class token
        has an additional id.
    Alternative b: a code computed from the hidden state, which changes during training.
TI-2: How are the pixels of a patch normalised?
    Reading: as `(x - mean) / sqrt(variance + 1e-6)`, so a single-colour patch becomes 0 instead of rounding noise.
    Alternative b: as (x - mean) / sqrt(variance), which is undefined for a single-colour patch.
    Alternative c: the pixels are not normalised.
TI-3: Which id do bigrams and previous ids use as the id before the first token?
    Reading: id 0 precedes the first token.
    Alternative b: a separate id precedes the first token.
"""

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.clustering import nearest
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, Shared, variance
from moespec.spec.values import as_array, as_ids

__all__ = ["pair_ids", "patch_codes", "position_ids", "previous_ids"]

ALGORITHMS = (
    Algorithm(
        "token_ids",
        "Roller et al. 2021 (arXiv 2106.04426), section 3.1",
        2,
        ("pair_ids", "patch_codes", "position_ids", "previous_ids"),
    ),
)

Ids = NDArray[np.int64]
EPSILON = 1e-6
"""Constant added to the variance of a patch, so that a single-colour patch becomes 0."""


def patch_codes(patches: ArrayLike, codebook: Shared) -> Ids:
    """Returns the id of each patch: the index of the codeword nearest to the pixels of the patch.

        x    <- (x - mean(x)) / sqrt(variance(x) + 1e-6)      over the pixels of the patch
        id    = argmin_v |x - codebook[v]|^2                     ties go to the lower index

    Args:
        patches: (tokens, pixels). A row holds all channels of one patch.
        codebook: (codes, pixels), codewords for normalised patches.

    Returns:
        (tokens,) integers below the number of codes.

    Source: He et al. 2022 (arXiv 2111.06377), section 3, for the normalisation. In Hash, tokens are words, which need no codebook.

    >>> patch_codes([[1.0, 3.0], [9.0, 2.0], [4.0, 4.0]], [[0.0, 0.0], [-1.0, 1.0], [1.0, -1.0]]).tolist()
    [1, 2, 0]
    """
    patches = as_array("patches", patches, "tokens pixels").real
    codebook = as_array("codebook", codebook, "codes pixels").real
    check_size("codebook", codebook, 1, patches.shape[1], "the pixels of patches")
    return nearest(normalized_patches(patches), codebook)


def normalized_patches(patches: Array) -> Array:
    """Normalises each row of `patches` (tokens, pixels) to mean 0 and variance 1, because the codewords are normalised too."""
    centred = patches - np.mean(patches, axis=1, keepdims=True)
    return centred / np.sqrt(variance(patches, axis=1)[:, None] + EPSILON)


def position_ids(tokens: ArrayLike) -> Ids:
    """Returns the position of each token as the id of the token: 0, 1, 2, ...

    Args:
        tokens: (tokens, width).

    Returns:
        (tokens,) integers.

    Source: Hash, section 3.1 (position hashes).

    >>> position_ids([[2.0], [2.0], [3.0]]).tolist()
    [0, 1, 2]
    """
    return np.arange(len(as_array("tokens", tokens, "tokens width")))


def previous_ids(ids: ArrayLike) -> Ids:
    """Returns the id of the previous token: `ids[t - 1]`, and 0 for the first token.

    Args:
        ids: (tokens,) integers, at least 0.

    Returns:
        (tokens,) integers.

    Source: Hash, section 3.1 (previous token hashes).

    >>> previous_ids([3, 1, 2]).tolist()
    [0, 3, 1]
    """
    ids = as_ids("ids", ids, "tokens")
    return np.concatenate([np.zeros(1, np.int64), ids[:-1]])


def pair_ids(first: ArrayLike, second: ArrayLike, *, vocabulary: int) -> Ids:
    """Combines two ids into one: `first * vocabulary + second`.

    `pair_ids(previous_ids(ids), ids, ...)` gives bigrams. With `position_ids` as `first`, equal ids at different
    positions get different results.

    Args:
        first: (tokens,) integers, at least 0.
        second: (tokens,) integers, from 0 to `vocabulary - 1`.
        vocabulary: V, the number of possible values in `second`, at least 1 and below 2^31.

    Returns:
        (tokens,) integers.

    Raises:
        ContractError: the id of a pair does not fit in int64.

    Source: Hash, section 3.1 (bigram hashes).

    >>> pair_ids(previous_ids([3, 1, 2]), [3, 1, 2], vocabulary=4).tolist()
    [3, 13, 6]
    """
    vocabulary = check_at_least("vocabulary", vocabulary, 1)
    first, second = as_ids("first", first, "tokens"), as_ids("second", second, "tokens", below=vocabulary)
    check_size("second", second, 0, len(first), "the tokens of first")
    largest, last = int(np.max(first.real)), int(np.max(second.real))
    if largest * vocabulary + last >= 2**63:
        raise ContractError(f"first: {largest} times vocabulary={vocabulary} exceeds 64 bits")
    return first * vocabulary + second
