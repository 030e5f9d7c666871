"""The convolution in the convolutional stem of a vision transformer.

Ambiguity ledger

CV-1: How is an image padded if the stride is 2?
    Reading: the image is padded by (size - 1) / 2 pixels on every side.
        By: facebookresearch/pycls, pycls/models/blocks.py, conv2d.
    Alternative b: the image is padded so that the output has height / stride rows. If padding is odd, the extra row is at the end.
        By: google/flax, flax/linen/linear.py, Conv (padding "SAME", its default).
"""

from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_size
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, Shared
from moespec.spec.values import as_array

__all__ = ["convolution"]

ALGORITHMS = (Algorithm("convolution", "Xiao et al. 2021 (arXiv 2106.14881), section 5", 1, ("convolution",)),)


def convolution(images: ArrayLike, kernel: Shared, bias: Shared, *, stride: int = 1) -> Array:
    """Applies a linear map to the square of pixels around every `stride`-th pixel. Pixels outside the image are 0.

        y[r, c] = bias + sum_ij x[stride r + i - p, stride c + j - p] kernel[i, j],   p = (size - 1) / 2

    Args:
        images: x, one image, (height, width, channels).
        kernel: (size, size, channels, features), with an odd size. As in all frameworks, the kernel is not flipped.
        bias: (features,).
        stride: the distance in input pixels between adjacent rows or columns of the result, at least 1.

    Returns:
        y, (ceil(height / stride), ceil(width / stride), features).

    Raises:
        ShapeError: the kernel is not square, or its size is even.

    Source: Xiao et al. 2021 (arXiv 2106.14881), section 5, and its code: facebookresearch/pycls, pycls/models/vit.py,
    ViTStemConv.

    >>> x = np.arange(9.0).reshape(3, 3, 1)
    >>> convolution(x, np.ones((3, 3, 1, 1)), np.zeros(1), stride=2)[:, :, 0].tolist()
    [[8.0, 12.0], [20.0, 24.0]]
    """
    images = as_array("images", images, "height width channels")
    kernel = as_array("kernel", kernel, "size size channels features")
    bias = as_array("bias", bias, "features")
    stride = check_at_least("stride", stride, 1)
    padding = check_kernel(kernel, images.shape[2], bias)
    padded = np.pad(images, ((padding, padding), (padding, padding), (0, 0)))
    rows, columns = (-(-size // stride) for size in images.shape[:2])
    pixels = []
    for row in range(rows):
        for column in range(columns):
            top, left = stride * row, stride * column
            square = padded[top : top + kernel.shape[0], left : left + kernel.shape[0]]
            pixels.append(np.einsum("ijc,ijcf->f", square, kernel) + bias)
    return np.stack(pixels).reshape(rows, columns, len(bias))


def check_kernel(kernel: Any, channels: int, bias: Any) -> int:
    """Returns the padding per side. Raises `ShapeError` unless `kernel` is square, has an odd size and fits `channels` and `bias`."""
    size: int = kernel.shape[0]
    if size % 2 == 0:
        raise ShapeError(f"kernel: expected an odd size, got {size}")
    check_size("kernel", kernel, 1, size, "its first axis")
    check_size("kernel", kernel, 2, channels, "the channels of images")
    check_size("bias", bias, 0, kernel.shape[3], "the features of kernel")
    return size // 2
