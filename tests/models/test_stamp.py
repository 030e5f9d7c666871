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

from moespec.models.data import cifar
from moespec.models.data.datasets import load
from moespec.models.errors import RunError
from moespec.models.training import checkpoint
from moespec.models.training.resolve import load_data
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.unchanged import described, of_data

IMAGES = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)
LABELS = np.arange(16, dtype=np.uint8) % 2
ALL, SWAPPED = np.arange(16), np.array([1, 0, *range(2, 16)])
STATES = [
    (ALL, LABELS),
    (ALL, LABELS),
    (np.where(ALL == 5, 4, ALL), LABELS),
    (ALL[::-1], LABELS),
    (SWAPPED, LABELS[SWAPPED]),
]
STATES.append((ALL, 1 - LABELS))
"""As it was, a copy, one image replaced, all replaced, two moved, labels reversed."""


def write(kind: str, root: Path, images: Any, labels: Any) -> Path:
    """Pictures are files of one size."""
    if kind == "npz":
        np.savez(root / "data.npz", images=images, labels=labels)
        return root / "data.npz"
    for part in ("train", "t10k"):
        for name, array in (("images-idx3", images[..., 0]), ("labels-idx1", labels)) if kind == "idx" else ():
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (root / f"{part}-{name}-ubyte").write_bytes(header + array.tobytes())
    for file in (*cifar.KINDS[kind].train, cifar.KINDS[kind].test) if kind == "cifar10" else ():
        (root / file).write_bytes(np.column_stack([labels, images.reshape(16, -1)]).tobytes())
    for place, (image, label) in (
        enumerate(zip(images, labels, strict=True)) if kind in ("folder", "pairs", "webdataset") else ()
    ):
        name = root / f"{'ab'[label] if kind == 'folder' else ''}" / f"{place:02}.bmp"
        name.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(name)
        name.with_suffix(".cls" if kind == "webdataset" else ".txt").write_text(str(label))
    if kind == "webdataset":
        with tarfile.open(root / "0.tar", "w") as tar:
            for file in sorted(root.glob("*.[bc]*")):
                tar.add(file, file.name)
    return root


@pytest.mark.parametrize("kind", ["npz", "idx", "cifar10", "folder", "pairs", "webdataset"])
def test_what_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(cifar, "TEST", 16)
    monkeypatch.setattr(cifar, "KINDS", {name: each._replace(images=16) for name, each in cifar.KINDS.items()})
    stamps = []
    for number, (rows, labels) in enumerate(STATES):
        (root := tmp_path / str(number)).mkdir()
        path = write(kind, root, IMAGES[rows], labels)
        for file in root.rglob("*"):
            os.utime(file, (number, number))
        stamps.append(load(kind, str(path), image_size=8).stamp)
    assert stamps[0] == stamps[1], "a copy of another time"
    told = [described(of_data(stamps[0], stamp)) for stamp in stamps[2:]]
    assert ["contents" in text for text in told[:2]] == [True, True]
    assert all("images changed" in text for text in told)


def test_files_that_are_renamed_or_gone(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    write("folder", tmp_path / "x", IMAGES, LABELS)
    before = load("folder", str(tmp_path / "x"), image_size=8, cache=str(tmp_path / "cache")).stamp
    shutil.move(tmp_path / "x/a/00.bmp", tmp_path / "x/a/99.bmp")
    (tmp_path / "x/a/02.bmp").unlink()
    told = described(of_data(before, load("folder", str(tmp_path / "x"), image_size=8).stamp))
    assert told.startswith(
        "number of the training images is 14 there, 13 here; names and sizes of the training images changed"
    )
    assert of_data({}, before) == {}, "of a run that is older than stamps"


def test_a_run_does_not_go_on_with_other_data(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    directory, data = RunDirectory(run), load_data(runs.config)
    how: Any = {"config": directory.config(), "resume": True}
    other = replace(data, train=replace(data.train, labels=data.train.labels[::-1]))
    with pytest.raises(
        RunError, match=r"data have changed since step 4: labels of the training images changed\. .*override$"
    ):
        directory.claim(**how, dataset=other)
    directory.claim(**how, dataset=other, override=True)
    directory.claim(**how, dataset=other)
    record = checkpoint.read_record(run / "checkpoints" / "00000004")
    assert record["overrides"][0]["changes"].keys() == {"labels of the training images"}
    with pytest.raises(RunError, match=r"number of the training images is 1442 there, 355 here.*cannot be overridden"):
        directory.claim(**how, dataset=replace(data, train=data.validation), override=True)
