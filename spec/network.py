"""Operations that the models need around the routers, each for one example.

Ambiguity ledger

NW-1: What is in the root of the layer norm?
    Reading: the population variance plus epsilon, 1e-6.
    Alternatives: epsilon 1e-5 (torch's default); the unbiased variance.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_floating, check_positive, check_same_shape, check_size
from moespec.spec.checks import check_finite as _check_finite
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, log1p_exp, logsumexp, softmax, variance

__all__ = ["attention", "layer_norm", "patch_embed", "sigmoid_cross_entropy", "softmax_cross_entropy"]


def _any_rank(name: str, value: ArrayLike) -> Array:
    array = np.asarray(value)
    if array.ndim < 1 or array.size == 0:
        raise ShapeError(f"{name}: expected at least one axis and none of them empty, got shape {array.shape}")
    check_floating(name, array)
    array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    _check_finite(name, array)
    return array


def layer_norm(x: ArrayLike, scale: ArrayLike, bias: ArrayLike | None = None, *, epsilon: float = 1e-6) -> Array:
    """`(x - mean) / sqrt(variance + epsilon) * scale + bias` along the last axis, with the population variance.

    Args:
        x: (..., width).
        scale, bias: (width,); no bias if None.

    Source: Ba et al. 2016 (arXiv 1607.06450). Section 16.

    >>> layer_norm([1.0, 2.0, 3.0], np.ones(3)).round(6).tolist()
    [-1.224744, 0.0, 1.224744]
    """
    x = _any_rank("x", x)
    scale = as_array("scale", scale, "width")
    check_size("scale", scale, 0, x.shape[-1], "the last axis of x")
    check_positive("epsilon", epsilon)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normalised = centred / np.sqrt(variance(x)[..., None] + epsilon) * scale
    if bias is None:
        return normalised
    bias = as_array("bias", bias, "width")
    check_size("bias", bias, 0, x.shape[-1], "the last axis of x")
    return normalised + bias


def attention(query: ArrayLike, key: ArrayLike, value: ArrayLike) -> Array:
    """Softmax attention, each head alone: `softmax(q k^T / sqrt(dim)) v`.

    Args:
        query: (queries, heads, dim).
        key, value: (keys, heads, dim).

    Returns:
        (queries, heads, dim).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), eq. (1). Section 16.
    """
    query = as_array("query", query, "queries heads dim")
    key = as_array("key", key, "keys heads dim")
    value = as_array("value", value, "keys heads dim")
    check_same_shape("value", value, "key", key)
    for axis in (1, 2):
        check_size("key", key, axis, query.shape[axis], "the heads and dim of query")
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[2])
    return np.einsum("hqk,khd->qhd", softmax(scores), value)


def patch_embed(images: ArrayLike, kernel: ArrayLike, bias: ArrayLike) -> Array:
    """Cuts an image into patches, row by row, and maps each linearly: a convolution with stride `patch`.

    Args:
        images: one image, (height, width, channels); height and width are multiples of `patch`.
        kernel: (patch, patch, channels, features).
        bias: (features,).

    Returns:
        (patches, features).

    Source: Dosovitskiy et al. 2020 (arXiv 2010.11929), eq. (1). Section 16.

    >>> patch_embed(np.arange(16.0).reshape(4, 4, 1), np.ones((2, 2, 1, 1)), np.zeros(1))[:, 0].tolist()
    [10.0, 18.0, 42.0, 50.0]
    """
    image = as_array("images", images, "height width channels")
    kernel = as_array("kernel", kernel, "patch patch channels features")
    bias = as_array("bias", bias, "features")
    patch, features = kernel.shape[0], kernel.shape[3]
    check_size("kernel", kernel, 1, patch, "its first axis")
    check_size("kernel", kernel, 2, image.shape[2], "the channels of images")
    check_size("bias", bias, 0, features, "the features of kernel")
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    if image.shape[:2] != (rows * patch, columns * patch):
        raise ShapeError(f"images: {image.shape[0]} x {image.shape[1]} pixels do not divide into patches of {patch}")
    patches = np.zeros((rows * columns, features), dtype=np.result_type(image, kernel, bias))
    for row in range(rows):
        for column in range(columns):
            pixels = image[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            patches[row * columns + column] = np.einsum("ijc,ijcd->d", pixels, kernel) + bias
    return patches


def softmax_cross_entropy(logits: ArrayLike, targets: ArrayLike) -> Array:
    """`-sum_c y[c] log softmax(z)[c]` along the last axis.

    Args:
        logits: (..., classes).
        targets: (..., classes), probabilities.

    Returns:
        (...).

    Source: section 17.1.

    >>> float(softmax_cross_entropy([0.0, 0.0], [1.0, 0.0]).round(10))
    0.6931471806
    """
    logits, targets = _logits_and_targets(logits, targets)
    return np.sum(targets * (logsumexp(logits)[..., None] - logits), axis=-1)


def sigmoid_cross_entropy(logits: ArrayLike, targets: ArrayLike) -> Array:
    """`sum_c log(1 + exp(z[c])) - y[c] z[c]` along the last axis: one binary decision per class, summed.

    Args:
        logits: (..., classes).
        targets: (..., classes), each from 0 to 1.

    Returns:
        (...).

    Source: section 17.1.

    >>> float(sigmoid_cross_entropy([0.0, 0.0], [1.0, 0.0]).round(10))
    1.3862943611
    """
    logits, targets = _logits_and_targets(logits, targets)
    return np.sum(log1p_exp(logits) - targets * logits, axis=-1)


def _logits_and_targets(logits: ArrayLike, targets: ArrayLike) -> tuple[Array, Array]:
    logits, targets = _any_rank("logits", logits), _any_rank("targets", targets)
    check_same_shape("targets", targets, "logits", logits)
    return logits, targets
