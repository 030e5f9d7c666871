"""Images with captions: from a folder, a table, tar files and Hugging Face's library, and damaged captions."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from of_models import encoded, write_shard

from moespec.models.errors import DataError
from moespec.training.data import captions
from moespec.training.data.captions import caption, captions_of
from moespec.training.data.datasets import load

NUMBERS = range(10)
TRAIN, HELD = [0, 1, 2, 3, 5, 6, 7, 8], [4, 9]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in NUMBERS:
        path = tmp_path / "photos" / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
        path.with_suffix(".txt").write_text(f" number\n{number} é\n", encoding="utf-8-sig")
    return tmp_path / "photos"


def seen(split: Any) -> list[tuple[int, str]]:
    """The number of each picture with its caption; pictures are told by their labels, too."""
    numbers = (split.read(np.arange(len(split)))[:, 0, 0, 0] // 10).tolist()
    assert len(set(numbers)) == len(set(split.labels.tolist())) == len(set(zip(numbers, split.labels, strict=True)))
    return list(zip(numbers, split.captions, strict=True))


def loaded(path: Path, **fields: Any) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    data = load("pairs", str(path), image_size=4, **fields)
    assert data.classes == ()
    return seen(data.train), seen(data.validation)


def expected(numbers: list[int]) -> list[tuple[int, str]]:
    return [(number, f"number {number} é") for number in numbers]


def test_captions_beside_images(folder: Path) -> None:
    train, held = loaded(folder)
    assert sorted(train + held) == expected(list(NUMBERS))
    assert [number for number, _ in held] == [8, 9], "every fifth in the order of names"
    for old, new in (("0", "train"), ("1", "val")):
        (folder / old).rename(folder / new)
    assert loaded(folder) == (expected([0, 2, 4, 6, 8]), expected([1, 3, 5, 7, 9]))


def test_a_damaged_picture_takes_its_caption_along(folder: Path) -> None:
    (folder / "0" / "2.png").write_bytes(encoded(2)[:-25])
    train, held = loaded(folder, broken="skip")
    assert sorted(train + held) == [pair for pair in expected(list(NUMBERS)) if pair[0] != 2]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables(folder: Path, kind: str) -> None:
    rows = [(f"photos/{n % 2}/{n}.png", text) for n in NUMBERS for text in (f"number {n} é", f'"{n}",\tagain')]
    file = folder.parent / f"pairs.{kind}"
    if kind == "jsonl":
        lines = [{"text": [a, b], "file_name": name} for (name, a), (_, b) in zip(rows[::2], rows[1::2], strict=True)]
        file.write_text("\n\n".join(map(json.dumps, lines)))
    else:
        with file.open("w", newline="") as content:
            csv.writer(content, delimiter="\t" if kind == "tsv" else ",").writerows([("image", "caption"), *rows])
    train, held = loaded(file)
    assert train == [(n, text) for n in TRAIN for text in (f"number {n} é", f'"{n}", again')]
    assert {number for number, _ in held} == set(HELD), "both captions of a picture are in one part"


def pairs(numbers: list[int]) -> list[tuple[str, bytes]]:
    return [(f"{n}.png", encoded(n)) for n in numbers] + [(f"{n}.txt", f"number {n} é".encode()) for n in numbers]


def test_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [*pairs([0, 1, 2, 3, 4]), ("0.json", b"{}")])
    write_shard(tmp_path / "b.tar", pairs([5, 6, 7, 8, 9]))
    for _ in range(2):  # the second time from the index
        assert loaded(tmp_path) == (expected(TRAIN), expected(HELD))
    (tmp_path / "a.tar").rename(tmp_path / "train.tar")
    (tmp_path / "b.tar").rename(tmp_path / "val.tar")
    assert loaded(tmp_path) == (expected([0, 1, 2, 3, 4]), expected([5, 6, 7, 8, 9]))
    write_shard(tmp_path / "val.tar", [*pairs([5]), ("8.png", encoded(8))])
    with pytest.raises(DataError, match=r"val\.tar:8\.png: expected a caption in 8\.txt"):
        loaded(tmp_path)


def test_the_hugging_face_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pictures = [{"bytes": encoded(n), "path": None} for n in NUMBERS]
    rows = {"picture": pictures, "text": [f"number {n} é" for n in NUMBERS]}
    kinds = datasets.Features({"picture": datasets.Image(), "text": datasets.Value("string")})
    table = datasets.Dataset.from_dict(rows, features=kinds)
    table.save_to_disk(tmp_path / "saved")
    assert loaded(tmp_path / "saved") == (expected(TRAIN), expected(HELD))
    lists = datasets.Dataset.from_dict({"captions": [[f"{n}", f"{n} {n}"] for n in NUMBERS]})
    both = datasets.concatenate_datasets([table.remove_columns("text"), lists], axis=1)
    datasets.DatasetDict({"train": both, "test": table}).save_to_disk(tmp_path / "parts")
    train, held = loaded(tmp_path / "parts")
    assert train == [(n, text) for n in NUMBERS for text in (f"{n}", f"{n} {n}")]
    assert held == expected(list(NUMBERS))
    table.remove_columns("text").save_to_disk(tmp_path / "bare")
    with pytest.raises(DataError, match=r"bare, train: expected a column of captions \(caption, .*\), got picture"):
        loaded(tmp_path / "bare")


def test_folders_that_lack_something(folder: Path) -> None:
    text = folder / "1" / "3.txt"
    text.write_bytes(b" \n\0")
    with pytest.raises(DataError, match=r"1/3\.txt: empty caption"):
        loaded(folder)
    text.unlink()
    with pytest.raises(DataError, match=r"1/3\.png has no caption: cannot read 3\.txt beside it"):
        loaded(folder)
    with pytest.raises(DataError, match="expected a folder, or a"):
        loaded(folder / "none.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "image,caption\n", "no rows"),
        ("a.csv", "picture,caption\nx,y\n", r"row 1: expected an image column \(image, .*\), got picture, caption"),
        ("a.csv", "image,caption\n0/0.png,a\n0/none.png,b\n", r"row 2: '0/none\.png' is not a file below"),
        *(
            ("a.csv", f"image,caption\n{name},b\n", f"row 1: {name!r} is not a file below")
            for name in ("../out.png", "out.png")
        ),
        ("a.csv", "image,caption\n0/0.png,a cat, asleep\n", "row 1 has more values than columns"),
        ("a.csv", "image,caption\n0/0.png\n", r"row 1, 0/0\.png: expected a caption \(text\), got None"),
        ("a.csv", f"image,caption\n0/0.png,{'x' * 140_000}\n", r"row 1 cannot be read \(field larger than field limit"),
        ("a.jsonl", '{"image": "0/0.png", "caption": []}', r"row 1: 0/0\.png has no caption"),
        ("a.jsonl", '{"image": null, "caption": ""}', "row 1: expected the name of an image, got None"),
        ("a.jsonl", "[" * 100_000, "row 1 cannot be read"),
    ],
)
def test_wrong_tables(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)
    (folder.parent / "out.png").write_bytes(encoded(0))
    (folder / "out.png").symlink_to("../out.png")
    with pytest.raises(DataError, match=message) as error:
        loaded(folder / name)
    assert name in str(error.value)
    assert len(str(error.value)) < 500 + len(str(folder))


def test_classes_are_not_learned_from_pairs(folder: Path, said: Any) -> None:
    assert "all 10 images can be read" in said(["scan", str(folder), "--data", "pairs"])
    options = ["--data", "pairs", "--data.path", str(folder), "--model.image-size", "8", "--backend", "numpy"]
    wrong = said(["train", *options, "--run", str(folder / "run")], 2)
    assert "data.name='pairs': expected images with classes, but these have only captions" in wrong
    assert not (folder / "run").exists()


def test_captions_of_strangers() -> None:
    assert caption("  a\x00\x1b[31m\u2028 b\n\n", "x") == "a [31m b"
    assert caption(b"caf\xff \xc3\xa9", "x") == "caf\ufffd é"
    assert caption("half \ud83d", "x") == "half \ufffd"
    assert caption("👩‍🚀", "x") == "👩‍🚀", "what joins the parts of an emoji stays"
    with pytest.raises(DataError, match=f"x: expected a caption of at most {captions.LONGEST} characters"):
        caption("a" * (captions.LONGEST + 1), "x")
    texts = captions_of(["ab", "é", "", "c"])
    assert list(texts) == ["ab", "é", "", "c"]
    assert (texts[-1], list(texts[np.array([3, 1])]), len(captions_of([]))) == ("c", ["c", "é"], 0)
