"""Where pictures come from: tar shards, the Hugging Face library, broken files, transparency, names of classes."""

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from of_models import encoded, write_shard
from PIL import Image

from moespec import cli
from moespec.models.errors import DataError
from moespec.training.data import shards
from moespec.training.data.datasets import load
from moespec.training.data.folder import find_folder
from moespec.training.data.pairs import find_pairs
from moespec.training.data.pictures import read_image


def members(numbers: range) -> list[tuple[str, bytes]]:
    """Pictures with labels, number modulo 2, in both of the ways that there are."""
    found = []
    for number in numbers:
        name = f"deep.er/{number:03}" if number % 3 == 2 else f"{number:03}"
        found.append((f"{name}.png", encoded(number)))
        if number % 3 == 2:
            found.append((f"{name}.seg.png", b"not the picture"))
            found.append((f"{name}.json", json.dumps({"label": number % 2, "text": "x"}).encode()))
        else:
            found.append((f"{name}.cls", str(number % 2).encode()))
    return found


def numbers_of(images: np.ndarray) -> list[int]:
    return (images[:, 0, 0, 0] // 10).tolist()


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write_shard(tmp_path / "tars" / "data-000.tar", members(range(6)))
    write_shard(tmp_path / "tars" / "data-001.tar", members(range(6, 20)))
    return tmp_path / "tars"


def test_shards_are_read_in_any_order(tars: Path) -> None:
    data = load("webdataset", str(tars), image_size=4)
    assert (len(data.train), len(data.validation), data.classes) == (16, 4, ("0", "1"))
    assert numbers_of(data.validation.read(np.arange(4))) == [8, 9, 18, 19], "every fifth of each class"
    order = np.array([15, 3, 0, 9])
    found = numbers_of(data.train.read(order))
    assert found == [17, 3, 0, 11]
    assert [number % 2 for number in found] == data.train.labels[order].tolist()
    assert data.train.picture(3).size == (9, 7)


def test_the_index_is_written_once_and_made_again_when_a_shard_changes(tars: Path, monkeypatch: Any) -> None:
    load("webdataset", str(tars), image_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_members", lambda path: pytest.fail("the index is there"))
        assert len(load("webdataset", str(tars), image_size=4).train) == 16
    write_shard(tars / "data-001.tar", members(range(6, 30)))
    assert len(load("webdataset", str(tars), image_size=4).train) == 24
    (tars / shards.INDEX).write_bytes(b"damaged")
    assert len(load("webdataset", str(tars), image_size=4).train) == 24


@pytest.mark.parametrize(
    ("key", "value"), [("shard", 2), ("offset", -9), ("size", 2**62), ("label", -1), ("label", 0.5), ("name", b"x")]
)
def test_an_index_is_of_places_in_its_shards(tars: Path, monkeypatch: Any, key: str, value: Any) -> None:
    """Whoever wrote it: with another number, and the checksum made anew, it is not taken."""
    record, members_of, read = shards._record, shards._members, []

    def changed(stamps: Any, table: dict[str, Any]) -> dict[str, Any]:
        table[key] = table[key].astype(np.asarray(value).dtype)
        table[key][0] = value
        return record(stamps, table)

    with monkeypatch.context() as patch, contextlib.suppress(ValueError, IndexError, DataError):
        patch.setattr(shards, "_record", changed)
        shards.find_shards(tars)
    monkeypatch.setattr(shards, "_members", lambda *given, **how: (read.append(given), members_of(*given, **how))[1])
    for there in (2, 2):  # the second time by the index
        shards.find_shards(tars)
        assert len(read) == there


def test_shards_of_the_library_itself(tmp_path: Path) -> None:
    """Written by webdataset; it finds the same pictures and labels in them."""
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "train-0.tar")) as sink:
        for number in range(10):
            sink.write({"__key__": f"s{number:02}", "jpg": encoded(number, "jpg"), "cls": number % 2})
    data = load("webdataset", str(tmp_path), image_size=4)
    theirs = {
        sample["jpg"]: int(sample["cls"])
        for sample in webdataset.WebDataset(str(tmp_path / "train-0.tar"), shardshuffle=False)
    }
    files = data.train.read.__self__.files  # type: ignore[attr-defined]
    ours = {files.open(index).getvalue(): index % 2 for index in range(len(files))}
    assert ours == theirs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([("a\n.png", b"x")], r"a\\n\.png: expected a label in a\\n\.cls"),
        ([("a.png", b"x"), ("a.cls", b"cat")], r"a\.cls: expected an integer label >= 0, got b'cat'"),
        ([("a.png", b"x"), ("a.json", b'{"label": true}')], r"a\.json: expected an integer label"),
        ([("a.txt", b"x")], r"found no images in the shards \(extensions"),
        ([("a.png", b"x"), ("a.cls", b"0")], "no class has enough images to hold out 0.2"),
        ([*members(range(10)), ("z.png", b"x"), ("z.cls", b"1")], r"data\.tar:z\.png: not a readable image"),
    ],
)
def test_wrong_shards(tmp_path: Path, content: list[tuple[str, bytes]], message: str) -> None:
    write_shard(tmp_path / "data.tar", content)
    with pytest.raises(DataError, match=message) as error:
        load("webdataset", str(tmp_path), image_size=4)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_shard_that_is_no_tar_file(tmp_path: Path) -> None:
    for content in (b"\x1f\x8b compressed, it says", b"x" * 600):
        (tmp_path / "data.tar").write_bytes(content)
        with pytest.raises(DataError, match=r"data\.tar: expected an uncompressed tar file"):
            load("webdataset", str(tmp_path), image_size=4)
    (tmp_path / "data.tar").unlink()
    with pytest.raises(DataError, match=r"found no \.tar files"):
        load("webdataset", str(tmp_path), image_size=4)


def test_parquet_by_the_hugging_face_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    rows = {"image": [{"bytes": encoded(n), "path": None} for n in range(10)], "label": [n % 2 for n in range(10)]}
    table = datasets.Dataset.from_dict(rows, features=kinds)
    table.to_parquet(tmp_path / "files" / "train-00000.parquet")
    data = load("huggingface", str(tmp_path / "files"), image_size=4)
    assert (data.classes, len(data.train), len(data.validation)) == (("ant", "bee"), 8, 2)
    order = np.array([7, 0, 3])
    assert numbers_of(data.train.read(order)) == [7, 0, 3]
    assert data.train.labels[order].tolist() == [1, 0, 1]
    table.to_parquet(tmp_path / "files" / "validation-00000.parquet")
    data = load("huggingface", str(tmp_path / "files"), image_size=4)
    assert (len(data.train), numbers_of(data.validation.read(np.arange(10)))) == (10, list(range(10)))
    table.rename_column("image", "picture").save_to_disk(tmp_path / "saved")
    assert len(load("huggingface", str(tmp_path / "saved"), image_size=4).validation) == 2
    table.remove_columns("label").save_to_disk(tmp_path / "bare")
    with pytest.raises(DataError, match=r"bare, train: expected a column of labels .*, got image"):
        load("huggingface", str(tmp_path / "bare"), image_size=4)


def test_an_image_folder_by_the_hugging_face_library(photos: Path) -> None:
    pytest.importorskip("datasets")
    ours, theirs = load("folder", str(photos), image_size=4), load("huggingface", str(photos), image_size=4)
    assert theirs.classes == ours.classes
    for part in ("train", "validation"):
        one, other = getattr(ours, part), getattr(theirs, part)
        assert one.labels.tolist() == other.labels.tolist()
        np.testing.assert_array_equal(one.read(np.arange(len(one))), other.read(np.arange(len(other))))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(20):
        path = tmp_path / "photos" / ("ant", "bee")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return tmp_path / "photos"


def damage(photos: Path, *names: str) -> None:
    """Cut off the end, which the header does not tell."""
    for name in names:
        content = (photos / name).read_bytes()
        (photos / name).write_bytes(content[:-25])


def test_a_scan_names_every_broken_picture(photos: Path, capsys: pytest.CaptureFixture[str], said: Any) -> None:
    assert "all 20 images of 2 classes can be read" in said(["scan", str(photos)])
    damage(photos, "ant/04.png", "bee/07.png")
    (photos / "bee" / "11.png").write_bytes(b"no picture")
    assert cli.main(["scan", str(photos), "--workers", "1"]) == 2
    streams = capsys.readouterr()
    lines = streams.out.splitlines()
    assert [line.partition(": not a readable image")[0] for line in lines] == [
        str(photos / name) for name in ("ant/04.png", "bee/07.png", "bee/11.png")
    ]
    assert f"{photos}: 3 of 20 images cannot be read" in streams.err


def test_broken_pictures_are_skipped_and_counted(photos: Path) -> None:
    whole = load("folder", str(photos), image_size=4)
    numbers = set(numbers_of(whole.train.read(np.arange(16))))
    damage(photos, "ant/04.png", "bee/07.png")
    (photos / "bee" / "19.png").write_bytes(b"no picture")
    data = load("folder", str(photos), image_size=4, broken="skip")
    assert (len(data.train), len(data.validation)) == (len(whole.train) - 2, len(whole.validation) - 1)
    kept = numbers_of(data.train.read(np.arange(len(data.train))))
    assert sorted(kept) == sorted(numbers - {4, 7})
    assert [number % 2 for number in kept] == data.train.labels.tolist()
    (note,) = data.notes
    names = ", ".join(str(photos / name) for name in ("ant/04.png", "bee/07.png", "bee/19.png"))
    assert note == f"3 files are unreadable and skipped: {names}"


LEFT_OUT = {
    "classes": (
        "x.png __MACOSX/x.png ant/a.heic ant/b.HEIC ant/c ant/._0.png ant/.ipynb/x.png ant/deep/er/1.png ant/deep/up ant/up bee/0.png",
        "hidden 3 (__MACOSX/), beside the folders of classes 1 (x.png), .heic 2 (ant/a.heic), without an ending 1 (ant/c), "
        "links to a folder already read 2 (ant/deep/up/)",
    ),
    "split": (
        "train/a/0.png validation/a/0.png test/a/0.png x.csv .DS_Store",
        "hidden 1 (.DS_Store), beside train/ 2 (test/)",
    ),
    "labels": ("labels.csv 0.png 1.png deep/2.png a.txt", ".txt 1 (a.txt), without a row in labels.csv 1 (1.png)"),
    "pairs": ("0.png 0.txt 1.txt deep/1.png deep/1.txt", "captions without an image 1 (1.txt)"),
    "shards": (
        "0.png 0.cls 1.png 1.cls 1.jpg 2.cls 22.05.png 22.05.cls x.md ._0.png c",
        ".gz 1 (x.tar.gz) members of shards: ignored: images whose name a later image has 1 (x.tar:1.png), "
        "images with another dot in the name 1 (x.tar:22.05.png), .cls 1 (x.tar:22.05.cls), .md 1 (x.tar:x.md), "
        "hidden 1 (x.tar:._0.png), without an ending 1 (x.tar:c), labels without an image 1 (x.tar:2)",
    ),
}
"""Files of a layout (`up` is a link to the folder above), and what is said of those that are not read."""


@pytest.mark.parametrize("layout", LEFT_OUT)
def test_what_is_left_out_is_counted(tmp_path: Path, layout: str) -> None:
    names, said = LEFT_OUT[layout]
    contents = {".cls": b"0", ".txt": b"text", ".csv": b"id,label\n0,x\ndeep/2,y\n"}
    files = [(name, contents.get(Path(name).suffix, encoded(0))) for name in names.split()]
    if layout == "shards":
        write_shard(tmp_path / "x.tar", files)
        (tmp_path / "x.tar.gz").touch()
    for name, content in files if layout != "shards" else []:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to("..") if name.endswith("up") else (tmp_path / name).write_bytes(content)
    find: Any = {"pairs": find_pairs, "shards": shards.find_shards}.get(layout, find_folder)
    for _ in range(2):  # shards the second time from the index
        _, others = find(tmp_path)[:2]
        assert " ".join(others.notes).replace(f"{tmp_path}: ", "") == f"ignored: {said}"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id,label\n0,7\n1.png,10\ndeep/2,7\n3,10\n", None),
        ("id,label,Label\n0,7,8\n", "line 1: duplicate column names among id, label, Label"),
        ("id,text\n0,7\n", "line 1: expected a column label or .*, got id, text"),
        ("id,label\n0,7\n\n9,7\n", "line 4, column 'id': '9' matches no picture in"),
        ("id,label\n0,7\n0.png,7\n", r"line 3, column 'id': '0\.png' repeats the image of line 2"),
        ("id,label\n0,7,8\n", "line 2, column 'label': no label, or not the columns of line 1"),
        ("id,label\n../out,7\n", "matches no picture"),
        ("id,label\n\xff,7\n", "line 1: cannot be read"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_tables_of_labels(tmp_path: Path, table: str, message: str | None, beside: bool) -> None:
    for name in ("out", "train/0", "train/1", "train/3", "train/2" if beside else "train/deep/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(encoded(0))
    file = tmp_path / ("train.csv" if beside else "train/labels.csv")
    file.write_text(table.replace("deep/", "") if beside else table, encoding="latin-1")
    with contextlib.nullcontext() if message is None else pytest.raises(DataError, match=f"{file}.*{message}"):
        classes, part, held = find_folder(tmp_path)
        assert (classes, part.labels.tolist(), held) == (("7", "10"), [0, 1, 0, 1] if beside else [0, 1, 1, 0], None)


def test_transparency_has_the_background_and_one_note(photos: Path) -> None:
    clear = Image.new("RGBA", (9, 7), (1, 2, 3, 0))
    for name in ("ant/00.png", "ant/02.png"):
        clear.save(photos / name)
    white = load("folder", str(photos), image_size=4)
    assert white.notes == ("2 pictures may be partly transparent; white fills the background (data.background)",)
    red = load("folder", str(photos), image_size=4, background="#ff0000")
    for data, expected in ((white, (255, 255, 255)), (red, (255, 0, 0))):
        assert (data.train.read(np.array([0])) == expected).all()
        assert (np.asarray(data.train.picture(1)) == expected).all()


def test_the_middle_of_a_resized_picture(tmp_path: Path) -> None:
    """The shorter side is made 8 pixels long, of which the middle 4 are the image."""
    pixels = np.arange(8 * 8, dtype=np.uint8).reshape(8, 8).repeat(2, axis=0).repeat(2, axis=1)
    for number in range(10):
        path = tmp_path / "abc"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    image = load("folder", str(tmp_path), image_size=4, resize=8).train.read(np.array([0]))[0]
    small = np.asarray(Image.fromarray(pixels).resize((8, 8), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(image[..., 0], small[2:6, 2:6])


def test_names_of_classes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n\nnine\n")
    assert load("digits", classes=str(tmp_path / "names.txt")).classes[9] == "nine"


# Each kind of file is read as a viewer shows it, the right way up, on white.


RAMP = np.linspace(0, 65535, 16, dtype=np.uint16).reshape(4, 4)
"""16 greys, of which 8 bits hold every one: multiples of 4369, which is 17 times 257."""
EIGHT = (RAMP // 257).astype(np.uint8)


def grey(path: Path, *, channels: int = 1) -> np.ndarray:
    """The picture in its own size of 4 x 4, so that nothing is resized."""
    return read_image(path, 4, channels=channels)[..., 0]


@pytest.mark.parametrize("ending", ["png", "tif", "ppm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_of_16_bits_is_scaled(tmp_path: Path, ending: str, channels: int) -> None:
    path = tmp_path / f"x.{ending}"
    Image.fromarray(RAMP).save(path)
    np.testing.assert_array_equal(grey(path, channels=channels), EIGHT)


def test_a_transparent_grey_of_16_bits_is_white(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "x.png", transparency=4369)
    with Image.open(tmp_path / "x.png") as file:
        assert (file.mode, file.info["transparency"]) == ("I;16", 4369)
    expected = EIGHT.copy()
    expected[0, 1] = 255
    np.testing.assert_array_equal(grey(tmp_path / "x.png"), expected)


BLUE, HALF_BLUE = (0, 0, 255), (127, 127, 255)


def half_transparent(mode: str) -> Image.Image:
    """Blue that lets half of the page through."""
    return Image.new("RGBA", (4, 4), (*BLUE, 128)).convert(mode)


def of_palette(transparency: bytes | int | None) -> Image.Image:
    """A palette of blue and black, all pixels blue."""
    image = Image.new("P", (4, 4), 0)
    image.putpalette([*BLUE, 0, 0, 0])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


COLOURS: dict[str, tuple[Callable[[], Image.Image], tuple[int, int, int]]] = {
    "palette.png": (lambda: of_palette(None), BLUE),
    "transparent palette.png": (lambda: of_palette(bytes([127])), (128, 128, 255)),
    "transparent colour of a palette.gif": (lambda: of_palette(0), (255, 255, 255)),
    "alpha.png": (lambda: half_transparent("RGBA"), HALF_BLUE),
    "alpha.webp": (lambda: Image.new("RGBA", (4, 4), (0, 0, 0, 0)), (255, 255, 255)),
    "grey alpha.png": (lambda: Image.new("LA", (4, 4), (0, 0)), (255, 255, 255)),
    "cmyk.tif": (lambda: Image.new("CMYK", (4, 4), (255, 255, 0, 0)), BLUE),
    "cmyk.jpg": (lambda: Image.new("CMYK", (4, 4), (255, 255, 0, 0)), BLUE),
    "black and white.png": (lambda: Image.new("1", (4, 4), 1), (255, 255, 255)),
}


@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_as_they_look(tmp_path: Path, name: str) -> None:
    make, colour = COLOURS[name]
    make().save(tmp_path / name)
    found = read_image(tmp_path / name, 4).astype(int)
    np.testing.assert_allclose(found, np.broadcast_to(colour, found.shape), atol=3 if name.endswith("jpg") else 1)


QUARTERS = np.kron(np.array([[0, 80], [160, 240]], np.uint8), np.ones((4, 4), np.uint8))
"""Four squares of different greys."""
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda seen: seen,
    2: np.fliplr,
    5: np.transpose,
    6: lambda seen: np.rot90(seen, 1),
    7: lambda seen: np.transpose(np.rot90(seen, 2)),
    8: lambda seen: np.rot90(seen, -1),
}
"""How a picture is stored that is to be seen as it is, by the orientation that EXIF gives it."""


@pytest.mark.parametrize("orientation", STORED)
def test_pictures_are_turned_as_exif_says(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(STORED[orientation](QUARTERS)).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], QUARTERS)


@pytest.mark.parametrize("wide", [True, False])
def test_the_middle_square_of_a_picture_that_is_not_square(tmp_path: Path, wide: bool) -> None:
    """Its shorter side is kept whole, and as much is cut off at both ends of the longer one."""
    picture = np.zeros((8, 20), np.uint8)
    picture[:, 6:14] = QUARTERS
    picture[:, :6], picture[:, 14:] = 33, 44
    picture, expected = (picture, QUARTERS) if wide else (picture.T, QUARTERS.T)
    Image.fromarray(picture).save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], expected)


def ifd(*entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF file, or a block of EXIF, of these entries: tag, type (3: 16 bits, 4: 32 bits), count and value."""
    table = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + table + bytes(4)


def tiff(path: Path, values: np.ndarray, bits: int, photometric: int = 1, *more: tuple[int, int, int, int]) -> None:
    """A grey TIFF of so many bits a pixel. photometric: 1 if 0 is black, 0 if it is white."""
    unpacked = values.reshape(-1, 1) >> np.arange(bits)[::-1] & 1
    pixels = values.astype("<u2").tobytes() if bits == 16 else np.packbits(unpacked.astype(np.uint8)).tobytes()
    sizes = ((256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 1, bits), (262, 3, 1, photometric), (278, 3, 1, 4))
    start = 14 + 12 * (len(sizes) + 2 + len(more))
    path.write_bytes(ifd(*sizes, (273, 4, 1, start), (279, 4, 1, len(pixels)), *more) + pixels)


@pytest.mark.parametrize("photometric", [1, 0])
@pytest.mark.parametrize("bits", [4, 8, 10, 12, 14, 16])
def test_a_tiff_of_any_bits_is_scaled_or_named(tmp_path: Path, bits: int, photometric: int) -> None:
    values = np.linspace(0, 2**bits - 1, 16).round().astype(np.int64).reshape(4, 4)
    tiff(tmp_path / "x.tif", values, bits, photometric)
    if bits in (4, 8, 16) or (bits, photometric) == (12, 1):
        np.testing.assert_array_equal(grey(tmp_path / "x.tif"), EIGHT if photometric else 255 - EIGHT)
    else:
        with pytest.raises(DataError, match=r"x\.tif: not a readable image .* grey TIFF needs 8, 12 or 16 bits"):
            grey(tmp_path / "x.tif")


TURNED = (0x0112, 3, 1, 3)
DAMAGED = {
    **{"text": b"garbage!", "cut": ifd(TURNED)[:14], "itself": ifd((0x8769, 4, 1, 8)), "far": b"II*\0\xff\xff\xff\x7f"},
    **{"a count": ifd((0x0112, 3, 2**32 - 1, 3)), "a type": ifd((0x0112, 99, 1, 3))},
}


@pytest.mark.filterwarnings("ignore")  # of Pillow, as where nobody turns them into errors
@pytest.mark.parametrize("block", DAMAGED)
def test_a_damaged_block_of_exif_turns_nothing(tmp_path: Path, block: str) -> None:
    for ending in ("png", "webp", "jpg"):
        about = b"Exif\0\0" * (ending == "jpg") + DAMAGED[block]
        Image.fromarray(QUARTERS).save(tmp_path / f"x.{ending}", exif=about, quality=100, lossless=True)
        found = read_image(tmp_path / f"x.{ending}", 8, channels=1)[..., 0]
        np.testing.assert_allclose(found.astype(int), QUARTERS, atol=2)
    for pointer in (8, 2**31):  # to its own table, and to nowhere
        tiff(tmp_path / "x.tif", RAMP, 16, 1, (0x8769, 4, 1, pointer))
        np.testing.assert_array_equal(grey(tmp_path / "x.tif"), EIGHT)


@pytest.mark.parametrize("kind", [b"iCCP", b"zTXt", b"iTXt", b"tEXt", b"pHYs", b"gAMA", b"acTL", b"eXIf"])
@pytest.mark.parametrize("place", [33, -12])
def test_damage_beside_the_pixels_of_a_png_is_passed_over(tmp_path: Path, kind: bytes, place: int) -> None:
    Image.fromarray(QUARTERS).save(buffer := io.BytesIO(), "png")
    content = buffer.getvalue()
    for data, checksum in ((b"", None), (b"k\0\x05zzz", None), (b"k\0\0", b"none")):
        chunk = len(data).to_bytes(4) + kind + data + (checksum or zlib.crc32(kind + data).to_bytes(4))
        (tmp_path / "x.png").write_bytes(content[:place] + chunk + content[place:])
        np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], QUARTERS)


def test_pixels_whose_white_is_not_known(tmp_path: Path) -> None:
    """Floating-point numbers, of which `inspect` is refused one in test_nonsense, and large integers."""
    Image.fromarray(np.full((4, 4), 70000, np.int32)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"x\.tif: its pixels are signed or 32-bit integers"):
        read_image(tmp_path / "x.tif", 4)
