"""Augments batches with shifts, flips, mixup and cutmix. The random numbers of every augmentation depend only on the seed and the step."""

import math

import numpy as np
from numpy.typing import NDArray

from moespec.training.rng import AUGMENTATION, CUTMIX, MIXUP, generator

__all__ = ["by_turns", "crop_and_flip", "cutmix", "mixed", "mixup_weight", "one_hot"]

ALL = slice(None)


def crop_and_flip(
    images: NDArray[np.uint8],
    *,
    padding: int,
    flip: bool,
    seed: int,
    step: int,
    batch: int | None = None,
    places: NDArray[np.int64] | slice = ALL,
) -> NDArray[np.uint8]:
    """Shifts images `(N, H, W, Ch)` by up to `padding` pixels along each axis; with `flip`, mirrors each image with probability 1/2.

    A shift is a crop of `H x W` at a random position of the image after zero-padding by `padding`. places: the positions `(N,)` of
    these images in a batch of size `batch`; by default, 0 to N - 1.
    """
    random = generator(seed, AUGMENTATION, step)
    count, height, width, _ = images.shape
    batch = batch or count
    if padding:
        padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))  # (N, h, w, Ch, H, W)
        top, left = random.integers(0, 2 * padding + 1, (2, batch))[:, places]
        images = windows[np.arange(count), top, left].transpose(0, 2, 3, 1)
    if flip:
        mirrored = random.random(batch)[places] < 0.5
        images = images.copy()
        images[mirrored] = images[mirrored, :, ::-1]
    return images


def mixup_weight(*, alpha: float, seed: int, step: int) -> np.float32:
    """Draws the weight with which `mixed` mixes each example of the (shuffled) batch with its neighbour.

    The whole batch gets one weight from Beta(alpha, alpha) (Zhang et al. 2018, eq. 1). A weight w below 1/2 is replaced by 1 - w, which
    only changes which of the two examples gets the larger weight.
    """
    sample = generator(seed, MIXUP, step).beta(alpha, alpha)
    return np.float32(max(sample, 1 - sample))


def cutmix(
    images: NDArray[np.uint8], targets: NDArray[np.float32], *, alpha: float, seed: int, step: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Pastes into each image a rectangle of its neighbour in the (shuffled) batch, and mixes the targets by the area of the rectangle.

    All images get the same rectangle, with the image's aspect ratio and a uniformly random centre. The rectangle covers the fraction
    `1 - w` of the image, with w from Beta(alpha, alpha), and is clipped to the image. The weight of the targets is `1 - area / (H W)`.

    Source: Yun et al. 2019 (arXiv 1905.04899), eq. 2 and Algorithm A1; clovaai/CutMix-PyTorch, train.py, rand_bbox.
    """
    random = generator(seed, CUTMIX, step)
    _, height, width, _ = images.shape
    part = math.sqrt(1 - random.beta(alpha, alpha))
    tall, wide = int(height * part) // 2, int(width * part) // 2
    y, x = int(random.integers(height)), int(random.integers(width))
    top, bottom, left, right = max(y - tall, 0), min(y + tall, height), max(x - wide, 0), min(x + wide, width)
    cut = images.copy()
    cut[:, top:bottom, left:right] = np.roll(images[:, top:bottom, left:right], 1, axis=0)
    weight = np.float32(1 - (bottom - top) * (right - left) / (height * width))
    return cut, mixed(targets, weight)


def by_turns(*, seed: int, step: int) -> bool:
    """Returns True for cutmix and False for mixup, each with probability 1/2 per batch, as in timm (data/mixup.py, switch_prob)."""
    return bool(generator(seed, CUTMIX, step, part=1).random() < 0.5)


def one_hot(labels: NDArray[np.int64], classes: int, *, smoothing: float = 0.0) -> NDArray[np.float32]:
    """Converts labels `(N,)` to one-hot rows `(N, classes)`, and spreads the fraction `smoothing` of each row evenly over all classes.

    `(1 - smoothing) onehot + smoothing / classes` (Szegedy et al. 2016, arXiv 1512.00567, section 7).
    """
    rows = np.eye(classes, dtype=np.float32)[labels]
    return rows if not smoothing else rows * np.float32(1 - smoothing) + np.float32(smoothing / classes)


def mixed(rows: NDArray[np.float32], weight: np.float32) -> NDArray[np.float32]:
    """Computes `weight x_i + (1 - weight) x_(i-1)` for the rows x_i, where x_(-1) is the last row."""
    return weight * rows + (np.float32(1) - weight) * np.roll(rows, 1, axis=0)
