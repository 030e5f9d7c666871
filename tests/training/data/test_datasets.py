"""Data sets: what they contain, and a clear error naming the file for everything that can be wrong with them."""

import gzip
import io
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moespec.models.errors import DataError
from moespec.spec.errors import ConfigError
from moespec.training.data import cifar
from moespec.training.data.datasets import load


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for prefix, count in (("train", 12), ("t10k", 6)):
        images = random.integers(0, 256, (count, 5, 5), np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 3
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return tmp_path


def npz(path: Path, **changes: object) -> str:
    arrays: dict = {"images": np.zeros((10, 4, 4), np.uint8), "labels": np.arange(10) % 2}
    arrays |= changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return str(path)


def test_digits() -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.validation), digits.shape) == (1442, 355, (8, 8, 1))
    assert digits.classes == tuple("0123456789")
    images = digits.normalize(digits.train.read(np.arange(1442)))
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (-1, 1)
    both = np.concatenate([digits.train.read(np.arange(1442)), digits.validation.read(np.arange(355))])
    assert len(np.unique(both, axis=0)) == 1797, "no image is in both parts"


def test_images_of_an_array_at_another_size() -> None:
    own, large = load("digits"), load("digits", image_size=12)
    assert large.shape == (12, 12, 1)
    assert own.shape == (8, 8, 1)
    assert large.notes == ("images of 8 x 8 pixels are resized to 12 x 12",)
    indices = np.array([3, 40])
    for part, other in ((large.train, own.train), (large.validation, own.validation)):
        for image, index in zip(part.read(indices), indices, strict=True):
            picture = other.picture(int(index))
            expected = np.asarray(picture.resize((12, 12), Image.Resampling.BICUBIC))
            np.testing.assert_array_equal(image[..., 0], np.minimum(expected, 16))
            np.testing.assert_array_equal(part.picture(int(index)), picture)
        np.testing.assert_array_equal(part.labels, other.labels)
    assert (large.train.read(np.arange(500)).max(), large.maximum) == (16, 16)


def test_images_of_an_array_that_are_not_square(tmp_path: Path) -> None:
    images = np.arange(10 * 4 * 6 * 3).reshape(10, 4, 6, 3).astype(np.uint8)
    wide = load("npz", npz(tmp_path / "x.npz", images=images), image_size=4)
    np.testing.assert_array_equal(wide.train.read(np.array([0]))[0], images[0, :, 1:5])
    many = npz(tmp_path / "y.npz", images=np.zeros((10, 4, 4, 2), np.uint8))
    assert load("npz", many).shape == (4, 4, 2)
    with pytest.raises(ConfigError, match=r"model\.image_size=8: .* 4 x 4 pixels and 2 channels"):
        load("npz", many, image_size=8)
    with pytest.raises(ConfigError, match=r"model\.image_size=0"):
        load("digits", image_size=0)


def test_idx(idx_folder: Path) -> None:
    data = load("idx", str(idx_folder))
    assert (len(data.train), len(data.validation), data.shape, data.classes) == (12, 6, (5, 5, 1), ("0", "1", "2"))
    expected = np.random.default_rng(0).integers(0, 256, (12, 5, 5), np.uint8)
    np.testing.assert_array_equal(data.train.read(np.array([3, 1]))[..., 0], expected[[3, 1]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "in the header, got 24"),
        (lambda content: content[:6], "the header is truncated to"),
        (lambda content: b"\0\0\x0d" + content[3:], "expected unsigned bytes"),
        (lambda content: b"PNG" + content, "not an IDX file"),
        (lambda content: gzip.compress(content)[:-9], "cannot be read"),
        (
            lambda content: idx_bytes(np.zeros((7, 5, 5), np.uint8)),
            r"labels-idx1-ubyte.* has shape \(6,\), expected \(7,\)",
        ),
        (lambda content: idx_bytes(np.zeros((6, 4, 4), np.uint8)), ", but t10k of"),
        (None, "expected a file t10k-images-idx3-ubyte"),
    ],
)
def test_damaged_idx(idx_folder: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    path = idx_folder / "t10k-images-idx3-ubyte"
    (idx_folder / "t10k-images-idx3-ubyte.gz").unlink()
    content = idx_bytes(np.zeros((1, 5, 5), np.uint8))
    if damage is not None:
        path.write_bytes(damage(content))
    with pytest.raises(DataError, match=message) as error:
        load("idx", str(idx_folder))
    assert str(idx_folder) in str(error.value)


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar_folder(request, tmp_path: Path, monkeypatch) -> tuple[str, Path]:  # type: ignore[no-untyped-def]
    """Files of 20 images, of which white is the red of 0, the green of 1 and the blue of 2."""
    name, kind = request.param, cifar.KINDS[request.param]
    monkeypatch.setattr(cifar, "TEST", 20)
    monkeypatch.setitem(cifar.KINDS, name, kind._replace(images=20))
    for number, file in enumerate([*kind.train, kind.test]):
        labels = [(np.arange(20) + number) % values for values in kind.labels]
        pixels = np.zeros((20, 3, 32, 32), np.uint8)
        pixels[[0, 1, 2], [0, 1, 2]], pixels[3, 0, 0, 5] = 255, 7
        (tmp_path / file).write_bytes(np.column_stack([*labels, pixels.reshape(20, -1)]).astype(np.uint8).tobytes())
    return name, tmp_path


def test_cifar(cifar_folder: tuple[str, Path]) -> None:
    name, folder = cifar_folder
    classes, files = cifar.KINDS[name].labels[-1], len(cifar.KINDS[name].train)
    (folder / cifar.KINDS[name].names).write_text("\n".join(f"kind {label}" for label in range(classes)) + "\n\n")
    data = load(name, str(folder))
    assert (len(data.train), len(data.validation)) == (20 * files, 20)
    assert (data.shape, data.maximum, data.classes[-1]) == ((32, 32, 3), 255, f"kind {classes - 1}")
    assert data.validation.labels[:4].tolist() == [(label + files) % classes for label in range(4)]
    images = data.train.read(np.array([2, 0, 1, 3]))
    assert images[:3, 9, 9].tolist() == [[0, 0, 255], [255, 0, 0], [0, 255, 0]]
    assert np.argwhere(images[3]).tolist() == [[0, 5, 0]]


def test_damaged_cifar(cifar_folder: tuple[str, Path]) -> None:
    name, folder = cifar_folder
    kind = cifar.KINDS[name]
    path, names = folder / kind.train[-1], folder / kind.names
    content = path.read_bytes()
    length, last = len(content) // 20, kind.labels[-1]
    assert load(name, str(folder)).classes == tuple(str(label) for label in range(last)), "without a file of names"
    wrong = bytearray(content)
    wrong[3 * length + len(kind.labels) - 1] = last
    for damaged, message in (
        (
            content[:-length],
            f"the file has {19 * length:,} bytes, expected {20 * length:,} (20 images of {length:,} bytes)",
        ),
        (bytes(wrong), f"image 3 has the label {last}, expected 0 to {last - 1}"),
        (None, "cannot be read (No such file or directory)"),
    ):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(f"{path}: {message}")):
            load(name, str(folder))
    names.write_text("one\n")
    with pytest.raises(DataError, match=rf"{names.name}: expected {last} class names, got 1"):
        load(name, str(folder))


def test_npz_of_medmnist(tmp_path: Path) -> None:
    parts = {"train": 6, "val": 3, "test": 4}
    arrays = {f"{part}_images": np.zeros((count, 4, 4), np.uint8) for part, count in parts.items()}
    arrays |= {f"{part}_labels": np.arange(count).reshape(count, 1) % 2 for part, count in parts.items()}
    objects = np.array([None], object)  # which is not looked at
    data = load("npz", npz(tmp_path / "x.npz", images=None, labels=None, objects=objects, **arrays))
    assert (data.train.labels.tolist(), len(data.validation), data.held_out) == ([0, 1] * 3, 3, False)
    assert data.notes == (f"{tmp_path / 'x.npz'}: ignored: arrays 3 (objects)",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((10, 4, 4), np.float32)}, "images has dtype float32, expected uint8"),
        ({"images": np.zeros((10, 4), np.uint8)}, r"images has shape \(10, 4\)"),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, int)}, r"images has shape \(0, 4, 4, 1\)"),
        ({"labels": np.zeros(10)}, "labels has dtype float64, expected integers"),
        ({"labels": np.zeros(9, int)}, r"labels has shape \(9,\), expected one for each of 10 images"),
        ({"val_images": 0, "validation_images": 0}, "found several validation splits, 'val' and 'validation'"),
        ({"labels": np.full(10, -1)}, "labels has label -1, expected 0 or more"),
        ({"labels": np.arange(10) % 2 * 2}, "no training image has class 1"),
        ({"labels": None}, "expected an array 'labels'"),
        ({"maximum": 16, "images": np.full((10, 4, 4), 17, np.uint8)}, "maximum=16, but pixels reach 17"),
        ({"labels": np.array([None] * 10, object)}, "not a readable .npz file of plain arrays"),
        ({"labels": np.arange(10) % 2 * 2**62}, "number of training images, got 4611686018427387904"),
        ({"labels": (np.arange(10) % 2).astype("u8") * np.uint64(2**63)}, "images, got 9223372036854775808"),
        ({"maximum": np.array("white")}, "maximum='white': expected an integer from 1 to 255"),
        ({"maximum": 16.5}, r"maximum=16\.5: expected an integer from 1 to 255"),
        ({"images": np.zeros((1, 4, 4), np.uint8), "labels": np.zeros(1, int)}, r"too few images \(1\) to hold out"),
    ],
)
def test_wrong_npz(tmp_path: Path, changes: dict, message: str) -> None:
    path = npz(tmp_path / "wrong.npz", **changes)
    with pytest.raises(DataError, match=message) as error:
        load("npz", path)
    assert path in str(error.value)


def check_refused_at_once(name: str, path: Path, message: str) -> None:
    """Before memory is allocated for what a header says."""
    tracemalloc.start()
    with pytest.raises(DataError, match=message):
        load(name, str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of bytes of such a shape, without the bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


LIES = [
    npy_header((57, 10**6, 10**6)),
    npy_header((10**30, 4, 4)),
    npy_header((10, 4, 4)),
    npy_header((0, 4, 4)) + b"more",
    npy_header((10, 4, 4))[:20],
]


@pytest.mark.parametrize("content", LIES)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_that_is_not_what_its_header_says(tmp_path: Path, content: bytes, compression: int) -> None:
    path = tmp_path / "lies.npz"
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("images.npy", content)
    check_refused_at_once("npz", path, r"lies\.npz: not a readable \.npz file of plain arrays \('images': ")


def test_broken_npz(tmp_path: Path) -> None:
    path = Path(npz(tmp_path / "broken.npz"))
    content = path.read_bytes()
    pixel = content.replace(bytes(100), b"\1" + bytes(99), 1)  # which only the checksum of the zip file tells
    for damaged in (b"", b"no zip", content[:-30], pixel):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"broken\.npz: not a readable"):
            load("npz", str(path))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (100, 100, 100)])
def test_an_idx_file_that_is_not_what_its_header_says(
    idx_folder: Path, shape: tuple[int, ...], compressed: bool
) -> None:
    content = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape)
    path = idx_folder / "t10k-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if compressed else content)
    check_refused_at_once("idx", idx_folder, "t10k-images-idx3-ubyte: expected .* in the header, got 0")


@pytest.mark.parametrize("val", ["val", "validation", "valid"])
def test_folder_with_train_and_val(tmp_path: Path, val: str) -> None:
    for label, name in enumerate(("ant", "bee")):
        for part in ("train", val):
            (tmp_path / part / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (12, 8), (40 * number, 100 * label, 0)).save(tmp_path / "train" / name / f"{number}.png")
        Image.new("L", (9, 9), 77).save(tmp_path / val / name / "1.jpg")
    data = load("folder", str(tmp_path), image_size=6)
    assert (len(data.train), len(data.validation)) == (10, 2)
    assert data.validation.read(np.array([0]))[0, 2, 2].tolist() == [77, 77, 77]
    (tmp_path / val / "ant" / "1.jpg").unlink()
    with pytest.raises(DataError, match=rf"{val}/ant: found no images"):
        load("folder", str(tmp_path), image_size=6)
    (tmp_path / val / "ant").rmdir()
    with pytest.raises(DataError, match=r"classes \('bee',\), but train/ has"):
        load("folder", str(tmp_path), image_size=6)
