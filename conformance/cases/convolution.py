"""Cases of the convolution."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant, variant
from moespec.conformance.format import Tensor

NAME = "convolution"


def _inputs(key: str, height: int, width: int, channels: int) -> dict[str, Any]:
    def drawn(name: str, axes: str, *shape: int) -> Tensor:
        return tensor(grid(f"{NAME}/{key}/{name}", shape, reach=1.0), axes)

    return {
        "images": drawn("images", "images height width channels", 2, height, width, channels),
        "kernel": drawn("kernel", "size size channels features", 3, 3, channels, 2),
        "bias": drawn("bias", "features", 2),
    }


def cases() -> Iterator[Definition]:
    case = partial(single, NAME, NAME)
    purpose = "Every pixel has its square; neither image nor kernel is the same along both axes."
    yield case("each_pixel", "value", purpose, **_inputs("each", 3, 4, 2))
    purpose = "Every second pixel of an even and of an odd number; the first is the first of the image."
    yield case("stride", "value", purpose, **_inputs("stride", 4, 5, 2), stride=2)
    purpose = "A stride longer than the image: one pixel is left."
    yield case("long_stride", "degenerate", purpose, **_inputs("long", 2, 2, 1), stride=3)
    yield case("gradient", "gradient", "By images, kernel and bias.", **_inputs("gradient", 3, 4, 1), stride=2)


def padded_at_the_end(B: Spec, images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array:
    """The padding is as small as possible. The end of an axis gets at least as much padding as the start."""
    right = B.convolution(images, kernel, bias, stride=stride)
    size, padding = kernel.shape[0], []
    for length, out in zip(images.shape[1:3], right.shape[1:3], strict=True):
        total = max((out - 1) * stride + size - length, 0)
        padding.append((total // 2, total - total // 2))
    return _of_padded(np.pad(images, [(0, 0), *padding, (0, 0)]), kernel, bias, stride, right.shape)


def edges_repeated(B: Spec, images: Array, kernel: Array, bias: Array, *, stride: int = 1) -> Array:
    """The padding repeats the pixels at the edge of the image."""
    right = B.convolution(images, kernel, bias, stride=stride)
    sides = (kernel.shape[0] // 2,) * 2
    padded = np.pad(images, [(0, 0), sides, sides, (0, 0)], mode="edge")
    return _of_padded(padded, kernel, bias, stride, right.shape)


def _of_padded(padded: Array, kernel: Array, bias: Array, stride: int, shape: tuple[int, ...]) -> Any:
    total = np.zeros(shape, np.result_type(padded, kernel, bias)) + bias
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[0]):
            rows, columns = (slice(k, k + stride * n, stride) for k, n in zip((i, j), shape[1:3], strict=True))
            total += padded[:, rows, columns][:, : shape[1], : shape[2]] @ kernel[i, j]
    return total


def variants() -> Iterator[Variant]:
    yield variant(padded_at_the_end, NAME, ledger="CV-1b")
    yield variant(edges_repeated, NAME)
