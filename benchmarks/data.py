"""Images a second of the data path, against as many processes that do nothing but decode and crop with Pillow.

    python benchmarks/data.py --workers 2

The pictures are made for the purpose: JPEG files of 500 x 375 pixels, smooth shapes with grain. Both cut the same random
(Inception) crops out of them and resize these to `--size`. Reported are images a second of wall time, and of the processor
time of all processes together, which says more on a machine that has other things to do; the rounds of both are in turn. What is
done on the device, mixing and normalising, is not in it.
"""

import argparse
import functools
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import record
from PIL import Image

from moespec.training.data.datasets import load
from moespec.training.data.loader import batch_indices, training_batch
from moespec.training.data.options import DataConfig
from moespec.training.data.prefetch import Prefetcher
from moespec.training.data.transforms import inception_box
from moespec.training.rng import PICTURE, generator

SEED = 0
WARM = 2
"""Batches of each worker that are not counted."""
CHANGES: dict[str, dict[str, Any]] = {
    "crop": {"crop": "inception", "mixup": 0.0},
    "crop, flip, mixup": {"crop": "inception", "flip": True, "mixup": 0.2},
}
CHANGES["crop, flip, RandAugment(2, 15), mixup"] = {**CHANGES["crop, flip, mixup"], "randaugment": 2, "magnitude": 15.0}


def main() -> None:
    parser = record.parser(__doc__, rounds=3)
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--pictures", type=int, default=1000, help="JPEG files (default: 1000)")
    parser.add_argument("--size", type=int, default=224, help="side of an image in pixels (default: 224)")
    parser.add_argument("--batch", type=int, default=128, help="images of a batch (default: 128)")
    parser.add_argument("--batches", type=int, default=8, help="timed batches of each worker in a round (default: 8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder), options.pictures)
        rows: dict[str, list[dict[str, float]]] = {"Pillow": [], **{name: [] for name in CHANGES}}
        for _ in range(options.rounds):
            rows["Pillow"].append(pillow(folder, options))
            for name, changes in CHANGES.items():
                rows[name].append(ours(folder, changes, options))
    figures: dict[str, Any] = {"config": vars(options), "images_per_second": {}, "images_per_cpu_second": {}}
    for key in ("images_per_second", "images_per_cpu_second"):
        figures[key] = {name: statistics.median(row[key] for row in of_name) for name, of_name in rows.items()}
        figures[f"{key}_of_pillow"] = {
            name: statistics.median(row[key] / alone[key] for row, alone in zip(of_name, rows["Pillow"], strict=True))
            for name, of_name in rows.items()
        }
    print(json.dumps(figures, indent=1))
    print(record.write("data", figures))


def make_pictures(folder: Path, count: int) -> None:
    """Pictures of ten classes, and two held out of each."""
    random = np.random.default_rng(SEED)
    for part, number in (("train", count), ("val", 20)):
        for index in range(number):
            coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
            smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
            pixels = np.clip(smooth + random.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8)
            path = folder / part / str(index % 10) / f"{index:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path, quality=85)


def ours(folder: str, changes: dict[str, Any], options: argparse.Namespace) -> dict[str, float]:
    """The data path, whose batches nobody uses."""
    config = DataConfig(name="folder", path=folder, workers=options.workers, **changes)
    dataset = load("folder", folder, image_size=options.size, workers=options.workers, **changes)
    make = functools.partial(training_batch, dataset, config, options.batch, SEED)
    counted = options.batches * options.workers
    with Prefetcher(make, 0, 2**40, ahead=config.prefetch, workers=options.workers) as batches:
        iterator = iter(batches)
        for _ in range(WARM * options.workers):
            next(iterator)
        begun, busy = time.perf_counter(), processor_time()
        for _ in range(counted):
            next(iterator)
        return rates(counted * options.batch, time.perf_counter() - begun, processor_time() - busy)


def pillow(folder: str, options: argparse.Namespace) -> dict[str, float]:
    """The processes that decode and crop: they begin together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(options.workers + 1)
    for worker in range(options.workers):
        context.Process(target=decode, args=(folder, worker, options, barrier)).start()
    barrier.wait()
    begun, busy = time.perf_counter(), processor_time()
    barrier.wait()
    images = options.batch * options.batches * options.workers
    measured = rates(images, time.perf_counter() - begun, processor_time() - busy)
    barrier.wait()
    for process in multiprocessing.active_children():
        process.join()
    return measured


def decode(folder: str, worker: int, options: argparse.Namespace, barrier: Any) -> None:
    """What one of them does: the crops of every so many batches, warm-up first."""
    names = sorted(str(path) for path in (Path(folder) / "train").glob("*/*.jpg"))
    for step in range(worker, (WARM + options.batches) * options.workers, options.workers):
        if step // options.workers == WARM:
            barrier.wait()
        for place, index in enumerate(batch_indices(len(names), options.batch, SEED, step)):
            image = Image.open(names[index]).convert("RGB")
            random = generator(SEED, PICTURE, step * options.batch + place)
            left, top, width, height = inception_box(*image.size, random, area=0.05)
            part = image.crop((left, top, left + width, top + height))
            np.asarray(part.resize((options.size, options.size), Image.Resampling.BILINEAR))
    barrier.wait()
    barrier.wait()


def processor_time() -> float:
    """Seconds of this process and of those that it started."""
    this = psutil.Process()
    each = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(times.user + times.system for times in each)


def rates(images: int, seconds: float, processor_seconds: float) -> dict[str, float]:
    return {"images_per_second": images / seconds, "images_per_cpu_second": images / processor_seconds}


if __name__ == "__main__":
    main()
