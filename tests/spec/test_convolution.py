"""Section 16: the convolution."""

import numpy as np
import pytest

from moespec import spec


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_every_sum_over_pixels_and_channels(size, stride):
    """The formula, sum by sum, with a pixel outside of the image left out."""
    random = np.random.default_rng(size + stride)
    x, W, b = random.normal(size=(4, 5, 2)), random.normal(size=(size, size, 2, 3)), random.normal(size=3)
    y, p = spec.convolution(x, W, b, stride=stride), (size - 1) // 2
    assert y.shape == (-(-4 // stride), -(-5 // stride), 3)
    for r, c, f in np.ndindex(y.shape):
        total = b[f]
        for i, j, d in np.ndindex(size, size, 2):
            row, column = stride * r + i - p, stride * c + j - p
            if 0 <= row < 4 and 0 <= column < 5:
                total += x[row, column, d] * W[i, j, d, f]
        assert y[r, c, f] == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_patches_are_a_convolution_whose_squares_do_not_overlap():
    """With a stride of the kernel's size, of an image moved so that the squares are patches."""
    random = np.random.default_rng(0)
    x, W, b = random.normal(size=(6, 9, 2)), random.normal(size=(3, 3, 2, 4)), random.normal(size=4)
    moved = np.pad(x, ((0, 1), (0, 1), (0, 0)))[1:, 1:]
    np.testing.assert_allclose(
        spec.convolution(moved, W, b, stride=3)[1:, 1:].reshape(-1, 4),
        spec.patch_embed(x, W, b).reshape(2, 3, 4)[1:, 1:].reshape(-1, 4),
        rtol=1e-12,
    )
