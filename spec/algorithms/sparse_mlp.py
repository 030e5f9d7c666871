"""Sparse-MLP: the rescale sub-layer, and how the network around the routers is read.

A sparse block maps patches and channels to other numbers of them, mixes tokens by an MoE over channels and channels by
an MoE over tokens, both with a residual connection at the new sizes, and maps back. `moespec.models.sparse_mlp` has it.

| here | Sparse-MLP (arXiv 2109.02008) |
|---|---|
| `x` (S, C), tokens and channels of one image | x |
| `rescale` of the first and of the last sub-layer | R_1, R_2 of eqs. (4) and (7) |
| tokens S' and channels C' in a sparse block | S_1, C_1 |

With one expert that has room for all, its gate is 1 and the sparse block is the dense one. Parameters, in millions without
the head: 21.3, 70.0 and 130.4 for S, B and L, where Tables 1 and 8 have 21 or 22, 69 and 130; of the placements of Table 5, 70.0 for the
first two (69) and 80.8 for the last four (79, SL-9). No public implementation is known.

Ambiguity ledger

SL-1: Which axis does the rescale sub-layer map first?
    Reading: tokens, then channels.
    Alternative b: channels first, which differs by what the second kernel makes of the first bias.
SL-2: Do the maps of the rescale sub-layer have biases?
    Reading: both have.
    Alternative b: neither has.
SL-3: Is there a map for an axis whose size stays, as that of the channels in Sparse-S?
    Reading: no: the other axis is mapped alone, and without either map there is no rescale sub-layer.
    Alternative b: yes, a square map, which would add 1.1 million parameters to Sparse-S.
SL-4: Is there a residual connection around the two rescale sub-layers?
    Reading: no; residuals are inside, at the new sizes.
    Alternative b: yes.
SL-5: What is a routing group?
    Reading: all channels, or all tokens, of the batch; arguments split it.
    Alternative b: those of one image.
SL-6: What is the capacity factor?
    Reading: 1.05 in the models, rounded up; the paper does not say. The default of the router `importance_score` is 1.
    Alternative b: 1.
    Alternative c: that of V-MoE at evaluation.
SL-7: Which of the two MoE layers does importance-score routing concern?
    Reading: the one over channels (token mixing).
        By: the paper, section 2.2.
    Alternative b: both (`channel_router` of the models).
SL-8: Does stochastic depth drop an image before it is routed, or what the experts make of it?
    Reading: what they make of it, image by image: its channels and tokens take room in the experts and count in the losses.
    Alternative b: before: it is not routed, so that the others of its group have more room.
    Alternative c: neither: the branch of a whole batch is dropped, or none.
SL-9: How many parameters has Sparse-B with its last four blocks sparse, and not the last two?
    Reading: 80.8 million, by the count that has 59.1, 70.0 and 130.4 where the tables, which cut them off, have 59 for Mixer-B, 69 for
        Sparse-B and 130 for Sparse-L.
    Alternative b: 79 million, which is 69 + (69 - 59). Whatever the rescale sub-layers hold, it excludes the 130 of Sparse-L: with 16
        experts in six of 14 blocks, two more sparse blocks have to add 10.7 to 11.1 million there, and at most 10.4 for 79.
        By: the paper, caption of Table 5.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_scores, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array
from moespec.spec.values import as_array, even

__all__ = ["rescale"]

ALGORITHMS = (Algorithm("sparse_mlp", "Lou et al. 2021 (arXiv 2109.02008), eqs. (4)-(9)", 3, ("rescale",)),)

AXES = {
    "token_kernel": "tokens new",
    "token_bias": "new",
    "channel_kernel": "channels new",
    "channel_bias": "new",
}
"""Axes of the parameters of `rescale`."""


def rescale(x: ArrayLike, params: Mapping[str, ArrayLike]) -> Array:
    """Two linear maps, of the tokens and then of the channels, without anything between:

        R(x) = (W_S^T x + b_S 1^T) W_C + 1 b_C^T

    Args:
        x: one image, (tokens, channels).
        params: `token_kernel` W_S (tokens, new tokens) and `token_bias` b_S (new tokens,), `channel_kernel` W_C (channels,
            new channels) and `channel_bias` b_C (new channels,). Without the first two the tokens stay as they are,
            without the last two the channels do. At least one of the two pairs is required.

    Returns:
        (new tokens, new channels).

    Raises:
        ConfigError: a kernel without its bias, a bias without its kernel, no map, or a parameter of another name.

    Source: Sparse-MLP, section 3 (two linear layers, one for each axis); eqs. (4) and (7) name it.

    >>> tokens = {"token_kernel": [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], "token_bias": [0.0, 0.0, 10.0]}
    >>> rescale([[1.0, 2.0], [3.0, 4.0]], tokens).tolist()
    [[1.0, 2.0], [3.0, 4.0], [15.0, 18.0]]
    >>> channels = {"channel_kernel": [[1.0], [2.0]], "channel_bias": [0.5]}
    >>> rescale([[1.0, 2.0], [3.0, 4.0]], tokens | channels).tolist()
    [[5.5], [11.5], [51.5]]
    """
    result = as_array("x", x, "tokens channels")
    maps = {name: even(name, value) for name, value in params.items()}
    check_rescale(maps, *result.shape)
    maps = {name: as_array(name, value, AXES[name]) for name, value in maps.items()}
    if "token_kernel" in maps:
        result = np.einsum("sc,sz->zc", result, maps["token_kernel"]) + maps["token_bias"][:, None]
    if "channel_kernel" in maps:
        result = np.einsum("zc,cd->zd", result, maps["channel_kernel"]) + maps["channel_bias"]
    return result


def check_rescale(params: Mapping[str, Any], tokens: int, channels: int) -> None:
    """ConfigError, ShapeError or DtypeError unless `params` are maps for that many tokens and channels. They are returned as arrays."""
    names = list(AXES)
    if set(params) not in ({*names}, {*names[:2]}, {*names[2:]}):
        raise ConfigError(f"params: expected {', '.join(names)}, or only the first or last two, got {sorted(params)}")
    for axis, size in (("token", tokens), ("channel", channels)):
        if f"{axis}_kernel" not in params:
            continue
        kernel, bias = params[f"{axis}_kernel"], params[f"{axis}_bias"]
        check_scores(f"{axis}_kernel", kernel, AXES[f"{axis}_kernel"])
        check_scores(f"{axis}_bias", bias, AXES[f"{axis}_bias"])
        check_size(f"{axis}_kernel", kernel, 0, size, f"the {axis}s of x")
        check_size(f"{axis}_bias", bias, 0, kernel.shape[1], f"the columns of {axis}_kernel")
