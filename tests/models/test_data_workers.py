"""Batches are the same bits whoever makes them: this process, one worker or two, from the start or from the middle."""

import functools
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from worker_functions import broken_at_3

from moespec.models import cli
from moespec.models.data.datasets import load, load_configured
from moespec.models.data.loader import batch_of_step
from moespec.models.data.options import DataConfig
from moespec.models.data.prefetch import Prefetcher
from moespec.models.errors import DataError

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
    make = functools.partial(batch_of_step, dataset, config, 8, 1)
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


def test_the_same_bits_from_a_cache(photos: Path, tmp_path: Path) -> None:
    """Of whole pictures, for random crops, and of middle squares; workers read it too."""
    for fields in (EVERYTHING, {"flip": True, "resize": 40}):
        config = DataConfig(name="folder", path=str(photos), **fields)
        expected = digests(config, 0, 0)
        kept = replace(config, cache=str(tmp_path))
        assert digests(kept, 0, 0) == expected
        written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        assert digests(kept, 3, 1) == expected[3:]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written, "it is not written again"
    name = sorted(photos.glob("*/*"))[0]
    os.utime(name, ns=(1, 1))
    digests(kept, 5, 0)
    assert len(list(tmp_path.iterdir())) > len(written), "pictures that have changed are decoded anew"


def test_an_error_of_a_worker_surfaces_in_its_place() -> None:
    with Prefetcher(broken_at_3, 0, 9, ahead=2, workers=2) as results:
        iterator = iter(results)
        assert [next(iterator) for _ in range(3)] == [(step, step) for step in range(3)]
        with pytest.raises(DataError, match=r"bee/3\.jpg: broken"):
            next(iterator)


def test_receive_sees_each_step_and_its_result() -> None:
    for workers in (0, 1):
        with Prefetcher(abs, 4, 7, ahead=1, workers=workers, receive=lambda step, item: (step, -item)) as results:
            assert list(results) == [(4, (4, -4)), (5, (5, -5)), (6, (6, -6))]


PARENT = """
import multiprocessing, os, time
from moespec.models.data.prefetch import _start_worker
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
        assert parent.stdout is not None
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


def test_a_folder_of_photographs_trains_to_the_same_bits_with_workers(
    photos: Path, tmp_path: Path, runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was stopped in the middle goes on with another number of workers to the bits of an unbroken one."""
    pytest.importorskip("torch")
    small = ["--model.image-size", "32", "--model.patch-size", "8", "--training.steps", "4"]
    data = ["--data", "folder", "--data.path", str(photos), "--data.crop", "torchvision", "--data.randaugment", "1"]
    flags = ["train", "--backend", "torch", *runs.flags, *small, "--training.checkpoint-every", "2", *data]
    assert cli.main([*flags, "--run", str(tmp_path / "whole")]) == 0
    runs.stopped(tmp_path / "whole", tmp_path / "stopped", step=2)
    assert cli.main([*flags, "--run", str(tmp_path / "stopped"), "--resume", "--data.workers", "1"]) == 0
    ends = [tmp_path / name / "checkpoints" / "00000004" / "arrays.safetensors" for name in ("whole", "stopped")]
    assert ends[0].read_bytes() == ends[1].read_bytes()
    assert ends[0].read_bytes() != (ends[0].parents[1] / "00000002" / ends[0].name).read_bytes()


def test_photographs_are_not_made_as_small_as_digits(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size is asked for, before there is a folder of the run; a larger model has its own."""
    run = tmp_path / "run"
    assert cli.main(["train", "--run", str(run), "--data", "folder", "--data.path", str(photos)]) == 2
    assert "model.image_size is not set: model.name='vit_tiny'" in capsys.readouterr().err
    assert not run.exists()


CHANGES: list[Callable[[Path], dict[str, Any]]] = [
    lambda photos: {"resize": 16},
    lambda photos: {"mean": "0.5,0.5"},
    lambda photos: {"classes": str(photos / "nowhere.txt")},
]


@pytest.mark.parametrize("fields", CHANGES)
def test_fields_that_do_not_suit_the_pictures(photos: Path, fields: Callable[[Path], dict[str, Any]]) -> None:
    from moespec.spec.errors import SpecError

    changes = fields(photos)
    ((name, value),) = changes.items()
    with pytest.raises(SpecError, match=rf"data\.{name}='?{value}"):
        load("folder", str(photos), image_size=32, **changes)
