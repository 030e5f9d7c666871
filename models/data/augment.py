"""Augmentation: random crop with padding, horizontal flip and mixup, each a function of the seed and the step."""

import numpy as np
from numpy.typing import NDArray

from moespec.models.streams import AUGMENTATION, MIXUP, generator

__all__ = ["crop_and_flip", "mixup", "one_hot"]


def crop_and_flip(images: NDArray[np.uint8], *, padding: int, flip: bool, seed: int, step: int) -> NDArray[np.uint8]:
    """Images `(N, H, W, Ch)` moved by up to `padding` pixels along each axis, and half of them mirrored if `flip`.

    A move is a crop of `H x W` at a random place of the image with `padding` zero pixels around it.
    """
    random = generator(seed, AUGMENTATION, step)
    count, height, width, _ = images.shape
    if padding:
        padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))  # (N, h, w, Ch, H, W)
        top, left = random.integers(0, 2 * padding + 1, (2, count))
        images = windows[np.arange(count), top, left].transpose(0, 2, 3, 1)
    if flip:
        mirrored = random.random((count, 1, 1, 1)) < 0.5
        images = np.where(mirrored, images[:, :, ::-1], images)
    return images


def mixup(
    images: NDArray[np.float32], targets: NDArray[np.float32], *, alpha: float, seed: int, step: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Each example mixed with its neighbour in the (shuffled) batch: `weight x_i + (1 - weight) x_(i-1)`, targets alike.

    One weight for the batch, from Beta(alpha, alpha) and reflected to at least 1/2 (Zhang et al. 2018, eq. 1; the
    reflection changes nothing but which of the two is called first).
    """
    sample = generator(seed, MIXUP, step).beta(alpha, alpha)
    weight = np.float32(max(sample, 1 - sample))
    rest = np.float32(1) - weight
    return (
        weight * images + rest * np.roll(images, 1, axis=0),
        weight * targets + rest * np.roll(targets, 1, axis=0),
    )


def one_hot(labels: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """Labels `(N,)` as rows `(N, classes)` with a one at the label."""
    return np.eye(classes, dtype=np.float32)[labels]
