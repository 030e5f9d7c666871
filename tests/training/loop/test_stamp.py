"""Data that changed between two sittings of a run are noticed; a copy of them elsewhere, or of another time, is the same data."""

import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moespec.models.errors import RunError
from moespec.training.data.datasets import load
from moespec.training.loop import checkpoint
from moespec.training.loop.config_compatibility import described, of_data
from moespec.training.loop.resolve import load_data
from moespec.training.loop.rundirectory import RunDirectory

IMAGES = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
LABELS, ALL, MOVED = np.arange(16) % 2, np.arange(16), np.array([1, 0, *range(2, 16)])
CHANGES: dict[str, tuple[Any, Any, str | None]] = {
    "a copy": (ALL, LABELS, None),
    "one replaced": (np.where(ALL == 5, 4, ALL), LABELS, "contents of the training images changed"),
    "two moved": (MOVED, LABELS[MOVED], "changed"),
    "labels reversed": (ALL, 1 - LABELS, "changed"),
}
"""What becomes of the images and the labels, and what is said of it."""


def write(kind: str, root: Path, images: Any = IMAGES, labels: Any = LABELS, *, time: int = 0) -> Path:
    """Pictures are files of one size."""
    root.mkdir()
    if kind == "npz":
        np.savez(root / "data.npz", images=images, labels=labels)
    for place, (image, label) in enumerate(zip(images, labels, strict=True)) if kind != "npz" else ():
        name = root / ("ab"[label] if kind == "folder" else "") / f"{place:02}.bmp"
        name.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(name)
        name.with_suffix(".cls" if kind == "webdataset" else ".txt").write_text(str(label))
    if kind == "webdataset":
        with tarfile.open(root / "0.tar", "w") as tar:
            for file in sorted(root.glob("*.[bc]*")):
                tar.add(file, file.name)
    for file in root.rglob("*"):
        os.utime(file, (time, time))
    return root / "data.npz" if kind == "npz" else root


@pytest.mark.parametrize("kind", ["npz", "folder", "pairs", "webdataset"])
def test_what_changed_is_named(tmp_path: Path, kind: str) -> None:
    before = load(kind, str(write(kind, tmp_path / "before")), image_size=8).stamp
    for number, (change, (rows, labels, said)) in enumerate(CHANGES.items()):
        path = write(kind, tmp_path / change, IMAGES[rows], labels, time=number + 1)
        told = described(of_data(before, load(kind, str(path), image_size=8).stamp))
        assert said in told if said else not told, change


def test_files_that_are_renamed_or_gone(tmp_path: Path) -> None:
    write("folder", tmp_path / "x")
    before = load("folder", str(tmp_path / "x"), image_size=8).stamp
    shutil.move(tmp_path / "x/a/00.bmp", tmp_path / "x/a/99.bmp")
    (tmp_path / "x/a/02.bmp").unlink()
    told = described(of_data(before, load("folder", str(tmp_path / "x"), image_size=8).stamp))
    assert told.startswith("number of the training images is 14 there, 13 here; names and sizes of the training")
    assert of_data({}, before) == {}, "of a run that is older than stamps"


def test_a_run_does_not_go_on_with_other_data(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    directory, data = RunDirectory(run), load_data(runs.config)
    how: Any = {"config": directory.config(), "resume": True}
    other = replace(data, train=replace(data.train, labels=data.train.labels[::-1]))
    with pytest.raises(
        RunError, match=r"the data has changed since step 4: labels of the training images changed\. .*override$"
    ):
        directory.claim(**how, dataset=other)
    directory.claim(**how, dataset=other, override=True)
    directory.claim(**how, dataset=other)
    record = checkpoint.read_record(run / "checkpoints" / "00000004")
    assert record["overrides"][0]["changes"].keys() == {"labels of the training images"}
    with pytest.raises(RunError, match=r"number of the training images is 1442 there, 355 here.*cannot be overridden"):
        directory.claim(**how, dataset=replace(data, train=data.validation), override=True)
