"""Other operations of the MLP-Mixer and of Sparse-MLP."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import wrong

__all__ = ["MUTANTS"]


def channels_rescaled_first(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """The rescale sub-layer maps channels, then tokens."""
    right = B.rescale(x, params)
    if "channel_kernel" not in params:
        return right
    x = x @ params["channel_kernel"] + params["channel_bias"]
    return np.einsum("nsc,sz->nzc", x, params["token_kernel"]) + params["token_bias"][:, None]


def rescaled_without_biases(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """The maps of the rescale sub-layer have no biases."""
    B.rescale(x, params)
    return B.rescale(x, {name: 0 * value if name.endswith("bias") else value for name, value in params.items()})


def token_bias_over_channels(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """The bias of the token map is added to the channels, where there are as many of them as of new tokens."""
    right = B.rescale(x, params)
    bias = params["token_bias"]
    if "channel_kernel" not in params or len(bias) != x.shape[2]:
        return right
    tokens = np.einsum("nsc,sz->nzc", x, params["token_kernel"]) + bias
    return tokens @ params["channel_kernel"] + params["channel_bias"]


def rescaled_with_a_gelu(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """There is a GELU between the two maps of the rescale sub-layer."""
    right = B.rescale(x, params)
    if "channel_kernel" not in params:
        return right
    tokens = B.rescale(x, {name: params[name] for name in ("token_kernel", "token_bias")})
    return B.gelu(tokens) @ params["channel_kernel"] + params["channel_bias"]


def rescaled_around_a_residual(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """The rescale sub-layer adds its input, where that has the same sizes."""
    right = B.rescale(x, params)
    return right + x if right.shape == x.shape else right


def rescaled_without_gradient(B: Any, x: Any, params: Mapping[str, Any]) -> Any:
    """The rescale sub-layer passes no gradient to its input."""
    return B.rescale(x.real, params)


def square_not_transposed(B: Any, x: Any, axes: Sequence[int]) -> Any:
    """The last two axes are not swapped where they are of equal length."""
    right = B.transpose(x, axes)
    return x if right.shape == x.shape else right


def norm_left_out(B: Any, x: Any, scale: Any, bias: Any = None, **options: Any) -> Any:
    """The layer norm only scales and shifts."""
    B.layer_norm(x, scale, bias, **options)
    return x * scale + (0 if bias is None else bias)


def norm_over_the_other_axis(B: Any, x: Any, scale: Any, bias: Any = None, **options: Any) -> Any:
    """The layer norm runs over the axis before the last, and scales along the last."""
    right = B.layer_norm(x, scale, bias, **options)
    if x.ndim < 2:
        return right
    ones = np.ones(x.shape[-2])
    normal = np.swapaxes(B.layer_norm(np.swapaxes(x, -1, -2), ones, None, **options), -1, -2)
    return normal * scale + (0 if bias is None else bias)


MUTANTS = (
    wrong(channels_rescaled_first, "rescale", ledger="SL-1"),
    wrong(rescaled_without_biases, "rescale", ledger="SL-2"),
    wrong(token_bias_over_channels, "rescale", ledger="SL-1"),
    wrong(rescaled_with_a_gelu, "rescale"),
    wrong(rescaled_around_a_residual, "rescale", ledger="SL-4"),
    wrong(rescaled_without_gradient, "rescale"),
    wrong(square_not_transposed, "transpose"),
    wrong(norm_left_out, "layer_norm"),
    wrong(norm_over_the_other_axis, "layer_norm"),
)
"""The mutants of this module."""
