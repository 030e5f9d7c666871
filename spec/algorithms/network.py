"""Operations of a vision transformer other than routing, for one image.

Ambiguity ledger

NW-1: Which epsilon does the layer norm add to the variance, and which variance does it use?
    Reading: the layer norm uses an epsilon of 1e-6, the default of flax, and the population variance.
        By: google-research/vmoe, vmoe/nn/vit_moe.py, EncoderBlock (flax.linen.LayerNorm); bwconrad/soft-moe,
        soft_moe/vision_transformer.py, SoftMoEVisionTransformer.
    Alternative b: the layer norm uses an epsilon of 1e-5, the default of torch.
        By: lucidrains/vit-pytorch, vit_pytorch/vit.py, Transformer (torch.nn.LayerNorm).
    Alternative c: the layer norm uses an epsilon of 1e-6 and the unbiased variance.
        By: harvardnlp/annotated-transformer, the_annotated_transformer.py, LayerNorm, which adds epsilon to the
        standard deviation.
NW-2: Is the sigmoid cross-entropy summed or averaged over classes?
    Reading: the sigmoid cross-entropy is summed over classes.
        By: google-research/big_vision, big_vision/utils.py, sigmoid_xent; google-research/vmoe, vmoe/train/trainer.py,
        get_loss_fn.
    Alternative b: the sigmoid cross-entropy is averaged over classes.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_positive, check_same_shape, check_size
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, Leading, Shared, logsumexp, softplus, variance
from moespec.spec.values import as_array

__all__ = ["layer_norm", "patch_embed", "sigmoid_cross_entropy", "softmax_cross_entropy"]

ALGORITHMS = (
    Algorithm(
        "network",
        "Dosovitskiy et al. 2020 (arXiv 2010.11929)",
        5,
        ("attention", "gelu", "layer_norm", "patch_embed", "sigmoid_cross_entropy", "softmax_cross_entropy"),
    ),
)


def layer_norm(x: Leading, scale: Shared, bias: Shared | None = None, *, epsilon: float = 1e-6) -> Array:
    """Computes `(x - mean) / sqrt(variance + epsilon) * scale + bias` along the last axis, with the population variance.

    Args:
        x: (..., width).
        scale: (width,).
        bias: (width,), or None for no bias.
        epsilon: greater than 0.

    Returns:
        (..., width).

    Source: Ba et al. 2016 (arXiv 1607.06450), eq. (4).

    >>> layer_norm([1.0, 2.0, 3.0], [1.0, 1.0, 2.0], [0.0, 5.0, 0.0]).round(6).tolist()
    [-1.224744, 5.0, 2.449488]
    """
    x = as_array("x", x, "... width")
    scale = as_array("scale", scale, "width")
    check_size("scale", scale, 0, x.shape[-1], "the width of x")
    check_positive("epsilon", epsilon)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normalised = centred / np.sqrt(variance(x)[..., None] + epsilon) * scale
    if bias is None:
        return normalised
    bias = as_array("bias", bias, "width")
    check_size("bias", bias, 0, x.shape[-1], "the width of x")
    return normalised + bias


def patch_embed(images: ArrayLike, kernel: Shared, bias: Shared | None = None) -> Array:
    """Cuts an image into square patches, row by row, and maps each patch linearly (a convolution with stride `patch`).

    Args:
        images: one image, (height, width, channels); height and width are multiples of the patch size.
        kernel: (patch, patch, channels, features).
        bias: (features,), or None for no bias.

    Returns:
        (patches, features). Patch i lies in row `i // (width / patch)` of the patch grid.

    Raises:
        ShapeError: the height or width is not a multiple of the patch size.

    Source: Dosovitskiy et al. 2020 (arXiv 2010.11929), eq. (1).

    >>> patch_embed(np.arange(16.0).reshape(4, 4, 1), np.ones((2, 2, 1, 1)), np.zeros(1))[:, 0].tolist()
    [10.0, 18.0, 42.0, 50.0]
    """
    images = as_array("images", images, "height width channels")
    kernel = as_array("kernel", kernel, "patch patch channels features")
    patch, features = kernel.shape[0], kernel.shape[3]
    bias = np.zeros(features, kernel.dtype) if bias is None else as_array("bias", bias, "features")
    check_size("kernel", kernel, 1, patch, "its first axis")
    check_size("kernel", kernel, 2, images.shape[2], "the channels of images")
    check_size("bias", bias, 0, features, "the features of kernel")
    rows, columns = images.shape[0] // patch, images.shape[1] // patch
    if images.shape[:2] != (rows * patch, columns * patch):
        raise ShapeError(f"images: shape {images.shape} cannot be split into patches of {patch} x {patch}")
    patches = []
    for row in range(rows):
        for column in range(columns):
            pixels = images[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            patches.append(np.einsum("ijc,ijcf->f", pixels, kernel) + bias)
    return np.stack(patches)


def softmax_cross_entropy(logits: Leading, targets: Leading) -> Array:
    """Computes the cross-entropy `-sum_c y[c] log softmax(z)[c]` along the last axis.

    Args:
        logits: z, (..., classes).
        targets: y, (..., classes), the class probabilities.

    Returns:
        (...).

    Source: google-research/big_vision, big_vision/utils.py, softmax_xent.

    >>> round(float(softmax_cross_entropy([0.0, 0.0], [1.0, 0.0])), 10)
    0.6931471806
    """
    logits = as_array("logits", logits, "... classes")
    targets = as_array("targets", targets, "... classes")
    check_same_shape("targets", targets, "logits", logits)
    return np.sum(targets * (logsumexp(logits)[..., None] - logits), axis=-1)


def sigmoid_cross_entropy(logits: Leading, targets: Leading) -> Array:
    """Computes `sum_c log(1 + exp(z[c])) - y[c] z[c]` along the last axis, the sum of one binary cross-entropy per class.

    Args:
        logits: z, (..., classes).
        targets: y, (..., classes), the probability of each class.

    Returns:
        (...).

    Source: google-research/big_vision, big_vision/utils.py, sigmoid_xent.

    >>> round(float(sigmoid_cross_entropy([0.0, 0.0], [1.0, 0.0])), 10)
    1.3862943611
    """
    logits = as_array("logits", logits, "... classes")
    targets = as_array("targets", targets, "... classes")
    check_same_shape("targets", targets, "logits", logits)
    return np.sum(softplus(logits) - targets * logits, axis=-1)
