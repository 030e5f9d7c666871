"""The order of the data, augmentation and prefetching: functions of seed and step, complete, and clean at the end."""

import functools
import hashlib
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from worker_functions import broken_at_3, ended_at_3

from moespec.models.errors import DataError, RunError
from moespec.models.memory import cores
from moespec.spec.errors import SpecError
from moespec.training import progress_bar
from moespec.training.configuration.config import TrainingConfig
from moespec.training.data import loader
from moespec.training.data.augment import crop_and_flip, mixup_weight
from moespec.training.data.dataset import array_split
from moespec.training.data.datasets import load, load_configured
from moespec.training.data.loader import batch_indices, data_position, evaluation_batch, prepared, training_batch
from moespec.training.data.options import DataConfig
from moespec.training.data.prefetch import Prefetcher
from moespec.training.loop.progress import Progress
from moespec.training.loop.resume import Start
from moespec.training.rng import AUGMENTATION, MIXUP, ORDER, TABLES, generator


def test_each_image_once_per_epoch() -> None:
    seen = np.concatenate([batch_indices(10, 4, seed=3, step=step) for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist(), "each epoch has its own order"
    assert data_position(10, 4, 5) == {"epoch": 2, "offset": 0}
    assert data_position(10, 4, 4) == {"epoch": 1, "offset": 6}
    # A batch that is longer than an epoch.
    assert np.bincount(batch_indices(3, 7, seed=0, step=0), minlength=3).tolist() in ([3, 2, 2], [2, 3, 2], [2, 2, 3])


def test_balanced_classes() -> None:
    """An epoch has its number of each class, whose images are drawn equally often; without balance the order is as it was."""
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 4], [100, 30, 3, 1]))
    split = array_split(np.zeros((134, 1, 1, 1), np.uint8), labels)
    for balance, draws in ((0.5, [74, 40, 13, 0, 7]), (1.0, [34, 34, 33, 0, 33])):
        batches = [loader.training_indices(split, balance, 90, 3, step) for step in range(15)]
        epochs = np.concatenate(batches)[:1340].reshape(10, 134)
        assert [np.bincount(labels[epoch]).tolist() for epoch in epochs] == [draws] * 10
        times = np.bincount(epochs.ravel(), minlength=134)
        assert all(np.ptp(times[labels == label]) <= 1 for label in labels)
        np.testing.assert_array_equal(loader.training_indices(split, balance, 90, 3, 7), batches[7])  # of any step
    np.testing.assert_array_equal(loader.training_indices(split, 0.0, 90, 3, 7), batch_indices(134, 90, 3, 7))


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


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_mixup_mixes_images_and_targets_alike(backend: str) -> None:
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


def test_leaving_early_ends_the_thread_and_the_work() -> None:
    made: list[int] = []
    before = threading.active_count()
    with Prefetcher(lambda step: made.append(step), 0, 10_000, ahead=2) as results:
        next(iter(results))
        time.sleep(0.05)
    assert threading.active_count() == before
    assert len(made) <= 5, "no more than asked for in advance"


@pytest.mark.parametrize("fields", [{"crop_padding": 1}, {"mixup": 0.5, "cutmix": 1.0, "flip": True, "erase": 0.5}])
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


# Batches are the same bits whoever makes them: this process, one worker or two, from the start or from the middle.


EVERYTHING: dict[str, Any] = {
    **{"crop": "inception", "crop_padding": 1, "flip": True, "jitter": 0.8, "grey": 0.2, "blur": 0.5, "solarise": 0.2},
    **{"randaugment": 2, "erase": 0.5, "mixup": 0.3, "cutmix": 1.0, "label_smoothing": 0.1},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of several sizes in two classes."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(20):
        path = folder / ("ant", "bee")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
        coarse.resize((60 + number, 50), Image.Resampling.BICUBIC).save(path)
    return folder


def digests(config: DataConfig, start: int, workers: int) -> list[str]:
    """Of the batches of the steps from `start` to 5. Large enough arrays go through shared memory."""
    dataset = load_configured(config, image_size=32)
    make = functools.partial(training_batch, dataset, config, 8, 1)
    with Prefetcher(make, start, 6, ahead=1, workers=workers) as batches:
        made = {step: hashlib.sha256(b["images"].tobytes() + b["targets"].tobytes()).hexdigest() for step, b in batches}
    assert list(made) == list(range(start, 6))
    return list(made.values())


def test_the_same_bits_for_any_number_of_workers_and_any_start(photos: Path) -> None:
    config = DataConfig(name="folder", path=str(photos), **EVERYTHING)
    expected = digests(config, 0, 0)
    assert len(set(expected)) == 6
    assert digests(config, 0, 1) == expected
    assert digests(config, 2, 2) == expected[2:]
    (note,) = load_configured(replace(config, workers=1000), image_size=32).notes
    assert note == f"data.workers=1000: using {cores()}, the number of cores available to this process"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_surfaces_in_its_place(workers: int) -> None:
    with Prefetcher(broken_at_3, 0, 9, ahead=2, workers=workers) as results:
        iterator = iter(results)
        assert [next(iterator) for _ in range(3)] == [(step, step) for step in range(3)]
        with pytest.raises(DataError, match=r"bee/3\.jpg: broken"):
            next(iterator)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("end", ["SIGKILL", 3])
def test_a_worker_that_ends_is_named(end: str | int) -> None:
    with (
        Prefetcher(functools.partial(ended_at_3, end), 0, 9, ahead=2, workers=2) as results,
        pytest.raises(RunError, match=f"a data worker .*{end}"),
    ):
        list(results)


PARENT = """
import multiprocessing, os, time
from moespec.training.data.prefetch import _start_worker
def work():
    _start_worker(0, 1)
    print(os.getpid(), flush=True)
    time.sleep(300)  # as one that waits for a slow disk
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
    time.sleep(300)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert running(worker)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(worker)


def running(process: int) -> bool:
    """Whether there is such a process, not counting one that has ended and waits for its parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_size_that_does_not_suit_the_pictures(photos: Path) -> None:
    with pytest.raises(SpecError, match=r"data\.resize=16"):
        load("folder", str(photos), image_size=32, resize=16)


def test_progress_in_a_log_is_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an estimate while the first step is compiled."""
    log = io.StringIO()
    monkeypatch.setattr(progress_bar, "PAUSE", 1e-9)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(sys, "stdout", None)
    with Progress(tmp_path, TrainingConfig(steps=3), Start(None, 0, 0.0, [], [])) as progress:
        for _ in range(3):
            progress.step()
        progress.evaluated(3, "x", {"accuracy": 0.5})
    shown = ["train: compiling the first step ...", "train: 2/3", "train: 3/3"]
    assert [line.partition(",")[0] for line in log.getvalue().splitlines()] == shown
