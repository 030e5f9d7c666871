"""Convolution of images."""

import jax.numpy as jnp
from jax import Array

from moespec.spec.algorithms.convolution import check_kernel
from moespec.spec.checks import check_at_least, check_scores

__all__ = ["convolution"]


def convolution(images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array:
    """images (N, H, W, channels), kernel (size, size, channels, features), bias (features,) -> (N, H', W', features).

    One product over the squares of pixels. They are made, which takes size^2 / stride^2 times the memory of the images, and
    is faster than the convolution of XLA on a CPU.
    """
    check_scores("images", images, "images height width channels")
    check_scores("kernel", kernel, "size size channels features")
    check_scores("bias", bias, "features")
    stride = check_at_least("stride", stride, 1)
    padding = check_kernel(kernel, images.shape[3], bias)
    _, height, width, _ = images.shape
    sides = (padding, padding)
    padded = jnp.pad(jnp.asarray(images), ((0, 0), sides, sides, (0, 0)))
    offsets = range(kernel.shape[0])
    squares = jnp.stack(
        [padded[:, i : i + height : stride, j : j + width : stride] for i in offsets for j in offsets], 3
    )
    return jnp.einsum("nhwpc,pcf->nhwf", squares, kernel.reshape(-1, *kernel.shape[2:])) + bias
