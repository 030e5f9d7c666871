"""Convolution of images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from moespec.spec.algorithms.convolution import check_kernel
from moespec.spec.checks import check_at_least, check_scores

__all__ = ["convolution"]


def convolution(images: Tensor, kernel: Tensor, bias: Tensor, *, stride: int = 1) -> Tensor:
    """images (N, H, W, channels), kernel (size, size, channels, features), bias (features,) -> (N, H', W', features).

    In the dtype of `images`, or that of autocast. One product over the squares of pixels, which unlike torch's convolution
    on a GPU has the precision that products have.
    """
    check_scores("images", images, "images height width channels")
    check_scores("kernel", kernel, "size size channels features")
    check_scores("bias", bias, "features")
    stride = check_at_least("stride", stride, 1)
    padding = check_kernel(kernel, images.shape[3], bias)
    _, height, width, _ = images.shape
    padded = F.pad(images, (0, 0, padding, padding, padding, padding))
    offsets = range(kernel.shape[0])
    squares = torch.cat(
        [padded[:, i : i + height : stride, j : j + width : stride] for i in offsets for j in offsets], dim=3
    )
    weights = kernel.reshape(-1, kernel.shape[3]).to(images.dtype)
    return F.linear(squares, weights.mT, bias.to(images.dtype))
