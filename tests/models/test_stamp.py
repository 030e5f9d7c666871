"""Data that changed between two sittings of a run are noticed; a copy of them elsewhere, or at another time, is the same data."""

import gzip
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moespec.models.data import cifar
from moespec.models.data.datasets import load
from moespec.models.errors import RunError
from moespec.models.training import checkpoint
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.unchanged import described, of_data

KINDS = {name: kind._replace(images=8) for name, kind in cifar.KINDS.items()}
IMAGES = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)
LABELS = np.arange(16, dtype=np.uint8) % 2


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(IMAGES[number]).save(path.with_suffix(".bmp"))  # all of one size


def folder(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    for place, number in enumerate(numbers):
        picture(root / ("ant", "bee")[labels[place]] / f"{place:02}", number)


def pairs(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    for place, number in enumerate(numbers):
        picture(root / f"{place:02}", number)
        (root / f"{place:02}.txt").write_text(("an ant", "a bee")[labels[place]])


def webdataset(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    pairs(root / "loose", numbers, labels)
    with tarfile.open(root / "0.tar", "w") as tar:
        for place, label in enumerate(labels):
            (root / "loose" / f"{place:02}.cls").write_text(str(label))
            for ending in ("bmp", "cls"):
                tar.add(root / "loose" / f"{place:02}.{ending}", f"{place:02}.{ending}")
    shutil.rmtree(root / "loose")


def npz(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    np.savez(root / "data.npz", images=IMAGES[numbers], labels=labels)


def idx(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    for name, array in (("images-idx3", IMAGES[numbers, ..., 0]), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        for part in ("train", "t10k"):
            (root / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))


def cifar10(root: Path, numbers: list[int], labels: Any = LABELS) -> None:
    rows = np.column_stack([labels, IMAGES[numbers].reshape(16, -1)])
    for file in (*KINDS["cifar10"].train, KINDS["cifar10"].test):
        (root / file).write_bytes(rows[:8].tobytes())


WRITERS: list[Callable[..., None]] = [folder, pairs, webdataset, npz, idx, cifar10]
OTHERS = [1, 0, *range(2, 16)]
CHANGES: dict[str, tuple[list[int], Any, str]] = {
    "nothing": ([*range(16)], LABELS, ""),
    "one replaced by another": ([*range(5), 4, *range(6, 16)], LABELS, "contents"),
    "all replaced": ([*range(16)][::-1], LABELS, "contents"),
    "two moved": (OTHERS, LABELS[OTHERS], "are others"),
    "labels reversed": ([*range(16)], 1 - LABELS, "are others"),
}


def stamp(kind: str, root: Path, **fields: Any) -> dict[str, Any]:
    path = root / "data.npz" if kind == "npz" else root
    return load(kind, str(path), image_size=8, **fields).stamp


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    monkeypatch.setattr(cifar, "KINDS", KINDS)
    monkeypatch.setattr(cifar, "TEST", 8)
    before: dict[str, Any] = {}
    for number, (what, (numbers, labels, changed)) in enumerate(CHANGES.items()):
        for copy in range(2):  # elsewhere, and at another time
            (root := tmp_path / f"{number}{copy}").mkdir()
            write(root, numbers, labels)
            for file in root.rglob("*"):
                os.utime(file, ns=(copy, copy))
            now = stamp(write.__name__, root)
            before = before or now
            told = described(of_data(before, now))
            assert (changed in told) if changed else not told, what


def test_files_and_their_number(tmp_path: Path) -> None:
    folder(tmp_path, [*range(16)])
    before = stamp("folder", tmp_path, cache=str(tmp_path / ".cache"))
    (tmp_path / "ant" / "00.bmp").rename(tmp_path / "ant" / "99.bmp")
    renamed = stamp("folder", tmp_path, cache=str(tmp_path / ".cache"))
    assert "names and sizes of the training images are others" in described(of_data(before, renamed))
    (tmp_path / "ant" / "02.bmp").unlink()
    fewer = of_data(before, stamp("folder", tmp_path))
    assert described(fewer) == "number of the training images is 14 there, 13 here"
    assert of_data({}, before) == {}, "of a run that is older than stamps"


def test_a_run_does_not_go_on_with_other_data(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    directory = RunDirectory(run)
    config, newest = directory.config(), run / "checkpoints" / "00000004"
    before = checkpoint.read_record(newest)["stamp"]
    now = before | {"labels of the training images": "0"}
    with pytest.raises(
        RunError, match=r"have changed since step 4: labels of the training images are others. .*override$"
    ):
        directory.claim(config, resume=True, stamp=now)
    directory.claim(config, resume=True, override=True, stamp=now)
    directory.claim(config, resume=True, stamp=now)
    assert checkpoint.read_record(newest)["overrides"][0]["changes"].keys() == {"labels of the training images"}
    with pytest.raises(RunError, match="images is 1442 there, 9 here; that cannot be overridden"):
        directory.claim(config, resume=True, override=True, stamp=now | {"number of the training images": 9})
