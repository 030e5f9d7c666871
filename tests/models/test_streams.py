"""Random numbers of one purpose at one step are those of no other: what is drawn where, and that nothing overlaps."""

from itertools import product

import numpy as np

from moespec.models import streams
from moespec.models.data.augment import crop_and_flip, mixup_weight
from moespec.models.data.loader import batch_indices
from moespec.models.streams import AUGMENTATION, MIXUP, ORDER, generator


def test_seeds_purposes_and_neighbouring_positions_share_no_numbers() -> None:
    """Also not shifted: the next position is not the same sequence from a later place on."""
    purposes = [ORDER, AUGMENTATION, MIXUP, streams.TABLES]
    keys = list(product((0, 1), purposes, (0, 1, 2, 3)))
    drawn = [generator(*key).integers(0, 2**64, 256, np.uint64) for key in keys]
    assert len(np.unique(np.concatenate(drawn))) == 256 * len(keys) == 256 * 32


def test_each_use_has_the_stream_of_its_purpose() -> None:
    np.testing.assert_array_equal(batch_indices(9, 9, 5, 2), generator(5, ORDER, 2).permutation(9))

    weight = generator(5, MIXUP, 2).beta(0.5, 0.5)
    np.testing.assert_allclose(mixup_weight(alpha=0.5, seed=5, step=2), max(weight, 1 - weight), rtol=1e-6)

    images = np.arange(32, dtype=np.uint8).reshape(16, 1, 2, 1)
    mirrored = generator(5, AUGMENTATION, 2).random(16) < 0.5
    flipped = crop_and_flip(images, padding=0, flip=True, seed=5, step=2)
    assert (flipped[:, 0, 0, 0] % 2 == mirrored).all()
