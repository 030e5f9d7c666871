"""The order of the data, augmentation and prefetching: functions of seed and step, complete, and clean at the end."""

import importlib
import threading
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from moespec.models.data.augment import crop_and_flip, mixup_weight
from moespec.models.data.datasets import load
from moespec.models.data.loader import batch_indices, data_position, evaluation_batch, training_batch
from moespec.models.data.options import DataConfig
from moespec.models.data.prefetch import Prefetcher
from moespec.models.data.prepared import prepared
from moespec.models.errors import DataError
from moespec.models.streams import AUGMENTATION, MIXUP, ORDER, TABLES, generator


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


def test_seeds_purposes_and_neighbouring_positions_share_no_numbers() -> None:
    """Also not shifted: the next position is not the same sequence from a later place on."""
    purposes = [ORDER, AUGMENTATION, MIXUP, TABLES]
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

    top, left = generator(5, AUGMENTATION, 2).integers(0, 3, (2, 16))
    images = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1).repeat(16, axis=0)
    moved = crop_and_flip(images, padding=1, flip=False, seed=5, step=2)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for picture, whole, y, x in zip(moved, padded, top, left, strict=True):
        np.testing.assert_array_equal(picture, whole[y : y + 4, x : x + 4])


def test_crop_moves_and_flip_mirrors() -> None:
    images = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4, 1).repeat(1000, axis=0)
    padded = np.pad(images[0, ..., 0], 2)
    possible = {padded[i : i + 4, j : j + 4].tobytes() for i in range(5) for j in range(5)}
    moved = crop_and_flip(images, padding=2, flip=False, seed=0, step=0)
    assert {image[..., 0].tobytes() for image in moved} == possible, "the last offsets are reached, and no others"
    flipped = crop_and_flip(images, padding=0, flip=True, seed=0, step=0)
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert 400 < mirrored.sum() < 600
    assert ((flipped == images).all(axis=(1, 2, 3)) | mirrored).all()
    np.testing.assert_array_equal(crop_and_flip(images, padding=0, flip=False, seed=0, step=0), images)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_mixup_mixes_images_and_targets_alike(backend: str) -> None:
    pytest.importorskip(backend)
    B = importlib.import_module(f"moespec.backends.{backend}")
    digits = replace(load("digits"), mean=(0.25,), std=(0.5,))
    mixing, plain = (training_batch(digits, DataConfig(mixup=mixup), batch=8, seed=1, step=3) for mixup in (0.5, 0.0))
    weight = mixing["mixup"]
    assert 0.5 <= weight < 1
    for before, after in (
        (plain["targets"], mixing["targets"]),
        (
            (plain["images"] / 16 - 0.25) / 0.5,
            B.to_numpy(prepared(B, digits, *B.from_numpy((mixing["images"], mixing["mixup"])))),
        ),
    ):
        np.testing.assert_allclose(after, weight * before + (1 - weight) * np.roll(before, 1, axis=0), atol=1e-6)
    weights = [mixup_weight(alpha=0.5, seed=0, step=step) for step in range(20)]
    assert min(weights) >= 0.5, "of the two the first has the larger weight"


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_pixels_arrive_as_bytes_and_are_normalised_there(backend: str) -> None:
    pytest.importorskip(backend)
    B = importlib.import_module(f"moespec.backends.{backend}")
    digits = load("digits")
    pixels = evaluation_batch(digits, digits.validation, batch=8, index=0)["images"]
    colours = replace(digits, maximum=255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    three = np.concatenate([pixels, pixels + 1, pixels + 2], axis=3)
    for data, images in ((digits, pixels), (colours, three)):
        assert images.dtype == np.uint8
        on_device = B.to_numpy(prepared(B, data, B.from_numpy(images)))
        assert on_device.dtype == ("float64" if backend == "numpy" else "float32")
        np.testing.assert_allclose(on_device, data.normalize(images), rtol=2e-7, atol=2e-7)


def test_a_batch_has_its_images_and_labels_in_the_range_of_a_model() -> None:
    digits = load("digits")
    batch = training_batch(digits, DataConfig(mixup=0), batch=8, seed=1, step=3)
    indices = batch_indices(1442, 8, 1, 3)
    np.testing.assert_array_equal(batch["images"], digits.train.read(indices))
    np.testing.assert_allclose(digits.normalize(batch["images"]), batch["images"] / 8 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch["targets"], np.eye(10)[digits.train.labels[indices]])


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


@pytest.mark.parametrize(
    "fields",
    [
        {"crop_padding": 1, "flip": True},
        {"mixup": 0.5},
        {"cutmix": 1.0},
        {"mixup": 0.5, "cutmix": 1.0, "flip": True, "erase": 0.5},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_rows_of_a_batch_are_the_same_as_in_the_whole(fields):
    """Whoever makes them. The neighbour before the first row of all is the last."""
    dataset, config = load("digits"), DataConfig(**fields)
    for step in (0, 1, 22):  # the last has images of two epochs
        whole = training_batch(dataset, config, batch=64, seed=3, step=step)
        for part in (range(16), range(16, 48), range(64)):
            made = training_batch(dataset, config, batch=64, seed=3, step=step, rows=part)
            chosen = slice(part.start, part.stop)
            np.testing.assert_array_equal(made["images"], whole["images"][chosen])
            np.testing.assert_array_equal(made["targets"], whole["targets"][chosen])
            if "mixup" in whole:
                assert made["mixup"] == whole["mixup"]
                np.testing.assert_array_equal(made["neighbours"], np.roll(whole["images"], 1, axis=0)[chosen])
