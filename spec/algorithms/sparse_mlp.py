"""Sparse-MLP: the rescale sub-layer, and an ambiguity ledger for the parts of the paper's network outside the routers.

A sparse block first changes the numbers of tokens and channels. One MoE layer then routes channels and mixes tokens. A second MoE layer
routes tokens and mixes channels. Both layers have residual connections. A final map restores the sizes. See `moespec.models.sparse_mlp`.

| here | Sparse-MLP (arXiv 2109.02008) |
|---|---|
| `x` (S, C), tokens and channels of one image | x |
| `rescale` of the first and of the last sub-layer | R_1, R_2 of eqs. (4) and (7) |
| tokens S' and channels C' in a sparse block | S_1, C_1 |

With one expert and a slot for every token, the gate is 1 and a sparse block equals a dense block. Without the head, models S, B and L have
21.3, 70.0 and 130.4 million parameters (paper: 21 or 22, 69 and 130). The model of Table 5 with two sparse blocks at the start has 70.0
million (paper: 69). The model with four sparse blocks at the end has 80.8 million (paper: 79, SL-9). No public implementation is known.

Ambiguity ledger

SL-1: Which axis does the rescale sub-layer map first?
    Reading: the sub-layer maps the token axis, then the channel axis.
    Alternative b: the channel axis, then the token axis. The result differs because the second kernel multiplies the first bias.
SL-2: Do the linear maps of the rescale sub-layer have biases?
    Reading: yes, both linear maps have biases.
    Alternative b: no, neither linear map has a bias.
SL-3: Is an axis mapped if its size does not change, such as the channel axis in Sparse-S?
    Reading: no, only the other axis is mapped. If neither size changes, there is no rescale sub-layer.
    Alternative b: yes, by a square matrix, which would add 1.1 million parameters to Sparse-S.
SL-4: Is there a residual connection around the two rescale sub-layers?
    Reading: no, the residual connections lie between the two rescale sub-layers, where the arrays have the new sizes.
    Alternative b: yes, a residual connection surrounds both sub-layers.
SL-5: Which channels or tokens form a routing group?
    Reading: all channels or all tokens of the batch form a group, unless the model option `group_size` or `group_images` splits the batch.
    Alternative b: the channels or the tokens of one image form a group.
SL-6: What is the capacity factor?
    Reading: 1.05 in the models (capacity rounded up), and 1 by default in `importance_score`. The paper states none.
    Alternative b: the capacity factor is 1.
    Alternative c: the capacity factor equals V-MoE's capacity factor at evaluation.
SL-7: Which of the two MoE layers uses importance-score routing?
    Reading: only the layer that routes channels (token mixing) uses importance-score routing.
        By: the paper, section 2.2.
    Alternative b: both MoE layers use importance-score routing (`channel_router` of the models).
SL-8: Does stochastic depth drop an image before routing, or only the experts' output for the image?
    Reading: only the output is dropped. The image's channels and tokens still occupy slots and count in the losses.
    Alternative b: the image is dropped before routing, which leaves more slots for the other images of the group.
    Alternative c: neither, because the branch is dropped either for all images of the batch or for none.
SL-9: How many parameters does Sparse-B have if its last four blocks are sparse instead of its last two?
    Reading: 80.8 million. The same counting gives 59.1 million for Mixer-B, 70.0 million for Sparse-B and 130.4 million
        for Sparse-L, where the paper's tables give 59, 69 and 130 million.
    Alternative b: 79 million, that is, 69 + (69 - 59). For any rescale sizes, this contradicts the 130 million of Sparse-L (16 experts
        in six of 14 blocks): two more sparse blocks must add 10.7 to 11.1 million to reach 130, but at most 10.4 million to reach 79.
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

AXES = {"token_kernel": "tokens new", "token_bias": "new", "channel_kernel": "channels new", "channel_bias": "new"}
"""Axes of the parameters of `rescale`."""


def rescale(x: ArrayLike, params: Mapping[str, ArrayLike]) -> Array:
    """Applies one linear map along the token axis and then one along the channel axis, without an activation in between:

        R(x) = (W_S^T x + b_S 1^T) W_C + 1 b_C^T

    Args:
        x: one image, (tokens, channels).
        params: `token_kernel` W_S (tokens, new tokens) and `token_bias` b_S (new tokens,), `channel_kernel` W_C (channels,
            new channels) and `channel_bias` b_C (new channels,). Without the token parameters, only the channels
            are mapped. Without the channel parameters, only the tokens are mapped. At least one kernel with its bias is required.

    Returns:
        (new tokens, new channels).

    Raises:
        ConfigError: a kernel or bias is missing, `params` is empty, or a parameter is unknown.

    Source: Sparse-MLP, section 3 (two linear layers, one per axis); R_1 and R_2 in eqs. (4) and (7).

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
    """Raises ConfigError, ShapeError or DtypeError unless `params` are valid for inputs with these numbers of tokens and channels."""
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
