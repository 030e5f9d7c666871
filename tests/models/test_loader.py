"""The order of the data, augmentation and prefetching: functions of seed and step, complete, and clean at the end."""

import threading
import time

import numpy as np
import pytest

from moespec.models.data.augment import crop_and_flip, mixup
from moespec.models.data.datasets import load
from moespec.models.data.loader import Prefetcher, batch_indices, data_position, evaluation_batch, training_batch
from moespec.models.data.options import DataConfig
from moespec.models.errors import DataError


def test_each_image_once_per_epoch() -> None:
    seen = np.concatenate([batch_indices(10, 4, seed=3, step=step) for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist(), "each epoch has its own order"
    assert data_position(10, 4, 5) == {"epoch": 2, "offset": 0}
    assert data_position(10, 4, 4) == {"epoch": 1, "offset": 6}


def test_a_batch_longer_than_an_epoch() -> None:
    assert np.bincount(batch_indices(3, 7, seed=0, step=0), minlength=3).tolist() in ([3, 2, 2], [2, 3, 2], [2, 2, 3])


def test_batches_depend_on_seed_and_step_only() -> None:
    digits, config = load("digits"), DataConfig(crop_padding=1, flip=True, mixup=0.5)

    def batch(seed: int, step: int) -> np.ndarray:
        return training_batch(digits, config, batch=8, seed=seed, step=step)["images"]

    first = batch(1, 200)
    batch(1, 7)
    np.testing.assert_array_equal(first, batch(1, 200))
    assert (first != batch(1, 201)).any()
    assert (first != batch(2, 200)).any()


def test_crop_moves_and_flip_mirrors() -> None:
    images = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4, 1).repeat(64, axis=0)
    padded = np.pad(images[0, ..., 0], 2)
    possible = {padded[i : i + 4, j : j + 4].tobytes() for i in range(5) for j in range(5)}
    moved = crop_and_flip(images, padding=2, flip=False, seed=0, step=0)
    found = {image[..., 0].tobytes() for image in moved}
    assert found <= possible
    assert len(found) > 10
    flipped = crop_and_flip(images, padding=0, flip=True, seed=0, step=0)
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert 16 < mirrored.sum() < 48
    assert ((flipped == images).all(axis=(1, 2, 3)) | mirrored).all()
    np.testing.assert_array_equal(crop_and_flip(images, padding=0, flip=False, seed=0, step=0), images)


def test_mixup_mixes_images_and_targets_alike() -> None:
    images = np.eye(4, dtype=np.float32).reshape(4, 2, 2, 1)
    targets = np.eye(4, dtype=np.float32)
    mixed, mixed_targets = mixup(images, targets, alpha=0.5, seed=0, step=1)
    np.testing.assert_array_equal(mixed.reshape(4, 4), mixed_targets)
    share = mixed_targets[0, 0]
    assert 0.5 <= share < 1
    np.testing.assert_allclose(mixed_targets, share * targets + (1 - share) * np.roll(targets, 1, axis=0), atol=1e-7)


def test_evaluation_covers_every_image_once() -> None:
    digits = load("digits")
    parts = [evaluation_batch(digits, digits.validation, batch=100, index=index) for index in range(4)]
    assert [part["count"] for part in parts] == [100, 100, 100, 55]
    assert all(part["images"].shape == (100, 8, 8, 1) for part in parts)
    labels = np.concatenate([part["targets"].argmax(axis=1)[: part["count"]] for part in parts])
    np.testing.assert_array_equal(labels, digits.validation.labels)


def test_prefetcher_keeps_the_order_and_ends() -> None:
    before = threading.active_count()
    with Prefetcher(lambda step: step * step, 3, 50, ahead=2) as results:
        assert list(results) == [(step, step * step) for step in range(3, 50)]
    assert threading.active_count() == before


def test_an_error_surfaces_in_its_place() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise DataError("photo.png: broken")
        return step

    before = threading.active_count()
    with Prefetcher(make, 0, 9, ahead=3) as results:
        iterator = iter(results)
        assert [next(iterator), next(iterator)] == [(0, 0), (1, 1)]
        with pytest.raises(DataError, match=r"photo\.png: broken"):
            next(iterator)
    assert threading.active_count() == before


def test_leaving_early_ends_the_thread_and_the_work() -> None:
    made: list[int] = []
    before = threading.active_count()
    with Prefetcher(lambda step: made.append(step), 0, 10_000, ahead=2) as results:
        next(iter(results))
        time.sleep(0.05)
    assert threading.active_count() == before
    assert len(made) <= 5, "no more than asked for in advance"
