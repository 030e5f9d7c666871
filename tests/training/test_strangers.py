"""What third-party files cannot do, as SECURITY.md says: run code, ask addresses, open other files, fill the memory, make it wait."""

import io
import os
import re
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from of_models import encoded, write_shard
from PIL import Image

from moespec import cli, training
from moespec.models import memory
from moespec.spec.errors import SpecError
from moespec.training.data.datasets import load
from moespec.training.data.hub import find_hub
from moespec.training.data.idx import read_idx
from moespec.training.data.pairs import find_pairs
from moespec.training.data.pictures import read_image
from moespec.training.data.shards import find_shards
from moespec.training.weights.files import read_npz, read_safetensors

ROOT = Path(__file__).parents[2]
PICTURES = [{"bytes": encoded(n), "path": None} for n in range(10)]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 7\nshowpage\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the network, which does not answer."""
    found: list[Any] = []

    def ask(*arguments: Any, **options: Any) -> None:
        found.append(arguments)
        raise OSError("no network")

    for place in ("getaddrinfo", "create_connection", "socket.connect"):
        monkeypatch.setattr(f"socket.{place}", ask)
    return found


def parquet(folder: Path, images: list[Any], *, text: Any = None) -> Path:
    """A folder with a table of pictures, labels and, where it is given, a column `text`."""
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    rows: dict[str, Any] = {"image": images, "label": [n % 2 for n in range(len(images))]}
    if text is not None:
        kinds, rows = {**kinds, "text": datasets.Image()}, {**rows, "text": [text] * len(images)}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).data.table
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "train-0.parquet")
    return folder


@pytest.mark.parametrize("address", ["hf://datasets/a/b/x.parquet", "http://127.0.0.1:9/x.parquet"])
def test_no_address_of_a_data_set_is_asked(asked: list[Any], tmp_path: Path, address: str) -> None:
    folder = parquet(tmp_path, PICTURES)
    (folder / "README.md").write_text(f'---\nconfigs:\n- config_name: default\n  data_files: "{address}"\n---\n')
    (folder / f"{folder.name}.py").write_text("raise SystemExit('ran')")
    assert len(load("huggingface", str(folder), image_size=4).train) == 8
    assert asked == []


def test_only_pictures_are_decoded(asked: list[Any], tmp_path: Path) -> None:
    """A column whose type says that it has pictures elsewhere."""
    folder = parquet(tmp_path, PICTURES, text={"bytes": None, "path": "hf://datasets/a/b/x.png"})
    with pytest.raises(SpecError, match=r"row 0: expected a caption"):
        find_hub(folder, captions=True)
    assert asked == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../out.png", "pipe.png", "/dev/zero", None])
def test_a_row_opens_no_other_file(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "out.png").write_bytes(encoded(1))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "in.png").symlink_to(tmp_path / "out.png")
    os.mkfifo(folder / "pipe.png")
    parquet(folder, [{"bytes": None, "path": "in.png"}, name and {"bytes": None, "path": name}])
    files = find_hub(folder)[1].files
    assert files.open(0) == folder / "in.png"
    said = rf"data, train, row 1{' has no image' if name is None else f': {name!r} is not a file below'}"
    with pytest.raises(SpecError, match=said):
        files.open(1)


def test_links_among_pictures_are_followed(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for number in range(10):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
        link = tmp_path / "photos" / "train" / "ab"[number % 2] / f"{number}.png"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / link.name)
    for name, folder in (("huggingface", tmp_path / "photos"), ("folder", tmp_path / "photos" / "train")):
        assert load(name, str(folder), image_size=4).train.read(np.arange(8)).shape == (8, 4, 4, 3)


def test_a_saved_data_set_names_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": PICTURES, "label": [0, 1] * 5}).save_to_disk(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="expected a column of images"):
        find_hub(Path("data"))
    (arrow,) = (tmp_path / "data").glob("*.arrow")
    arrow.rename(tmp_path / arrow.name)
    state = tmp_path / "data" / "state.json"
    state.write_text(state.read_text().replace(arrow.name, f"../{arrow.name}"))
    with pytest.raises(SpecError, match=r"state\.json: .*arrow' is not a file below"):
        find_hub(Path("data"))


def test_a_picture_is_of_the_formats_that_are_taken(tmp_path: Path) -> None:
    """By what is in it: an EPS would start Ghostscript, whatever its name."""
    assert Image.open(io.BytesIO(EPS)).format == "EPS"
    for content, said in (b"P6 20000 20000 255\n", "400000000 pixels"), (EPS, "expected BMP, GIF, JPEG, PNG, PPM"):
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(SpecError, match=rf"x\.png: not a readable image \(.*{said}"):
            read_image(tmp_path / "x.png", 4)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.tar", find_shards),
        ("a.txt", lambda path: find_pairs(path.parent)),
        ("w.safetensors", read_safetensors),
        ("names.txt", lambda path: load("digits", classes=str(path))),
        ("train-images-idx3-ubyte", read_idx),
        *((name, lambda path: read_image(path, 4)) for name in ("x.png", "link.png")),
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    """By readers of each kind; test_records has those of runs."""
    path = tmp_path / name
    (tmp_path / "a.png").write_bytes(encoded(1))
    path.symlink_to("/dev/zero") if name == "link.png" else os.mkfifo(path)
    signal.alarm(60)  # ends the process: it waits
    with pytest.raises(SpecError, match=rf"{name}.*not a regular file"):
        read(path)
    signal.alarm(0)


def sparse(name: str, size: int) -> bytes:
    """A member of GNU tar's that is one hole of this size."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[386:410] = b"%011o\0%011o\0" % (size, 0)
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("name", ["a.cls", "a.png"])
def test_a_hole_in_a_shard_is_not_filled(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / "x.tar", [("a.png", encoded(1)), ("a.cls", b"0")])
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(sparse("a.npy", 2**27) + whole)
    assert len(find_shards(tmp_path / "x.tar")[1].labels) == 1, "no part of the data"
    (tmp_path / "x.tar").write_bytes(sparse(name, 2**27) + whole)
    with pytest.raises(SpecError, match=rf"x\.tar:{name} is a sparse file; pack it without --sparse"):
        find_shards(tmp_path / "x.tar")


@pytest.mark.parametrize(("ending", "size"), [(".cls", 65), (".json", 2**20 + 1)])
def test_a_label_is_short(tmp_path: Path, ending: str, size: int) -> None:
    write_shard(tmp_path / "x.tar", [("a.png", encoded(1)), (f"a{ending}", b"1" * size)])
    with pytest.raises(SpecError, match=rf"a{ending} has {size:,} bytes, expected at most"):
        find_shards(tmp_path / "x.tar")


@pytest.mark.parametrize("read", [read_npz, lambda path: load("npz", str(path))])
def test_arrays_larger_than_the_memory_are_not_unpacked(tmp_path: Path, monkeypatch: Any, read: Any) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 9, 9), np.uint8), labels=np.arange(100) % 2)
    monkeypatch.setattr(memory, "of_machine", lambda: 8000)
    with pytest.raises(
        SpecError, match=r"x\.npz: .*its arrays need 9,\d+ bytes, but this machine has 8,000 bytes of memory"
    ):
        read(tmp_path / "x.npz")


@pytest.fixture
def planted(runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose configuration names functions of a module that may be imported."""
    run = tmp_path / "run"
    shutil.copytree(runs.whole("torch"), run)
    (tmp_path / "planted.py").write_text("def f(image, random):\n    return image\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    file = run / "config.toml"
    text = re.sub(r'(?m)^transform = ""$', 'transform = "planted:f"', file.read_text())
    file.write_text(re.sub(r'(?m)^log = ".*"$', 'log = "planted:f"', text))
    assert file.read_text().count("planted:f") == 2
    return run


def test_a_run_that_is_read_runs_no_code(planted: Path, tmp_path: Path, said: Any) -> None:
    (tmp_path / "x.png").write_bytes(encoded(1))
    for words in (
        ["evaluate", planted],
        ["inspect", planted, "--image", tmp_path / "x.png", "--out", tmp_path / "out.png"],
        ["predict", planted, tmp_path / "x.png"],
        ["convert", planted, tmp_path / "w.safetensors"],
        ["export", planted, "--format", "safetensors", "--out", tmp_path / "e.safetensors"],
    ):
        said([*map(str, words)])
    assert "planted" not in sys.modules


READING = "load|evaluate RUN|inspect RUN --image x.png|predict RUN RUN/x.png|export RUN --format safetensors|convert RUN w.safetensors"


@pytest.mark.parametrize("command", [*READING.split("|"), "train --run RUN --resume", "finetune RUN --run RUN2"])
def test_a_router_that_a_run_names_is_not_imported(planted: Path, command: str, said: Any) -> None:
    (planted / "x.png").write_bytes(encoded(1))
    file = planted / "config.toml"
    file.write_text(f'{file.read_text()}[model.block.1]\nrouter = "planted:f"\n')
    if command == "load":
        with pytest.raises(SpecError, match="router='planted:f': planted is not imported"):
            training.load(planted)
    else:
        words = [word.replace("RUN", str(planted)) for word in command.split()]
        assert "router='planted:f': planted is not imported; import it first" in said(words, 2)
        assert "planted" not in sys.modules
        assert "expected the name of a Router, got <function f" in said([*words, "--trust", "planted:f"], 2)
    assert ("planted" in sys.modules) == (command != "load")


@pytest.mark.parametrize("command", ["train --run RUN --resume", "finetune RUN --run NEW"])
def test_training_asks_before_it_imports_what_a_run_names(planted: Path, command: str, said: Any) -> None:
    words = [{"RUN": str(planted), "NEW": str(planted) + "2"}.get(word, word) for word in command.split()]
    text = said(words, 2)
    assert "data.transform='planted:f': the run's config.toml names code that training would import; to trust" in text
    assert "add --data.transform planted:f" in text
    words += ["--data.transform", "planted:f"]
    if "--resume" in words:
        assert "log='planted:f': the run's config.toml names code that training would import; to" in said(words, 2)
    assert "planted" not in sys.modules
    cli.main([*words, "--log", "planted:f", "--mesh.expert", "7"])  # it imports, and does not begin
    assert "planted" in sys.modules


def test_every_line_of_the_page_has_its_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    tests = {path: re.findall(r"(?m)^def (test_\w+)", path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")}
    assert named <= {name for names in tests.values() for name in names}
    assert {*tests[Path(__file__)]} - named == {"test_every_line_of_the_page_has_its_test"}
