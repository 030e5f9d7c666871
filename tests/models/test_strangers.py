"""What a stranger's files cannot do, as SECURITY.md says: run code, ask addresses, open other files, fill the memory, make it wait."""

import contextlib
import http.server
import io
import os
import re
import shutil
import signal
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from of_models import encoded, write_shard
from PIL import Image

from moespec.models import cli
from moespec.models.commandline.commands import read_data
from moespec.models.data import npz
from moespec.models.data.datasets import load
from moespec.models.data.hub import find_hub
from moespec.models.data.options import DataConfig
from moespec.models.data.pairs import find_pairs
from moespec.models.data.pictures import read_image
from moespec.models.data.shards import find_shards
from moespec.models.errors import CheckpointError, DataError
from moespec.models.training.config import Config
from moespec.models.training.configfile import with_model
from moespec.models.weights.files import read_safetensors

ROOT = Path(__file__).parents[2]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of a server, which stands for the hub, too."""
    datasets, constants = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub").constants
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *arguments: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "S3_DATASETS_BUCKET_PREFIX", address)
        yield asked
        server.shutdown()


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


PICTURES = [{"bytes": encoded(n), "path": None} for n in range(10)]


@pytest.mark.parametrize("address", ["hf://datasets/a/b/x.parquet", "{}/x.parquet"])
def test_no_address_of_a_data_set_is_asked(requests: list[str], tmp_path: Path, address: str) -> None:
    folder = parquet(tmp_path, PICTURES)
    where = address.format("http://127.0.0.1:9")
    (folder / "README.md").write_text(f'---\nconfigs:\n- config_name: default\n  data_files: "{where}"\n---\n')
    (folder / f"{folder.name}.py").write_text("raise SystemExit('ran')")
    assert len(load("huggingface", str(folder), image_size=4).train) == 8
    assert requests == []


def test_only_pictures_are_decoded(requests: list[str], tmp_path: Path) -> None:
    """A column whose type says that it has pictures elsewhere."""
    folder = parquet(tmp_path, PICTURES, text={"bytes": None, "path": "hf://datasets/a/b/x.png"})
    with pytest.raises(DataError, match=r"row 0: expected a caption"):
        find_hub(folder, captions=True)
    assert requests == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../out.png", "link.png", "pipe.png", "/dev/zero", None])
def test_a_row_opens_no_other_file(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "out.png").write_bytes(encoded(1))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "in.png").write_bytes(encoded(2))
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    os.mkfifo(folder / "pipe.png")
    parquet(folder, [{"bytes": None, "path": "in.png"}, name and {"bytes": None, "path": name}])
    files = find_hub(folder)[1].files
    assert files.open(0) == folder / "in.png"
    said = rf"data, train, row 1: {'no picture' if name is None else f'names {name!r}, which is not a file below'}"
    with pytest.raises(DataError, match=said):
        files.open(1)


def test_a_saved_data_set_names_no_other_file(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": PICTURES, "label": [0, 1] * 5}).save_to_disk(tmp_path / "data")
    (arrow,) = (tmp_path / "data").glob("*.arrow")
    arrow.rename(tmp_path / arrow.name)
    state = tmp_path / "data" / "state.json"
    state.write_text(state.read_text().replace(arrow.name, f"../{arrow.name}"))
    with pytest.raises(DataError, match=r"state\.json: names .*arrow', which is not a file below"):
        find_hub(tmp_path / "data")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 7\nshowpage\n"


def test_a_picture_is_of_the_formats_that_are_taken(tmp_path: Path) -> None:
    """By what is in it: an EPS would start Ghostscript, whatever its name."""
    assert Image.open(io.BytesIO(EPS)).format == "EPS"
    (tmp_path / "large.ppm").write_bytes(b"P6 20000 20000 255\n")
    with pytest.raises(DataError, match=r"large\.ppm: not a readable image .*400000000 pixels"):
        read_image(tmp_path / "large.ppm", 4)
    (tmp_path / "x.png").write_bytes(EPS)
    with pytest.raises(DataError, match=r"x\.png: not a readable image \(none of BMP, GIF, JPEG, PNG"):
        read_image(tmp_path / "x.png", 4)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a pipe that nobody writes to; who waits for it fails."""
    made: list[Path] = []

    def end(number: int, frame: Any) -> None:
        for path in made:  # threads wait for it too
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        pytest.fail("it waits for the pipe")

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        made.append(path)
        return path

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield make
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_is_not_waited_for(tmp_path: Path, pipe: Callable[[str], Path], said: Any) -> None:
    pipe("photos/a/x.png")
    (tmp_path / "photos" / "a" / "y.png").symlink_to("/dev/zero")
    assert "2 of 2 pictures cannot be read" in said(["scan", str(tmp_path / "photos")], 2)
    with pytest.raises(DataError, match=r"x\.tar: not a tar file, .*not a regular file"):
        find_shards(pipe("x.tar"))
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "a.png").write_bytes(encoded(1))
    pipe("pairs/a.txt")
    with pytest.raises(DataError, match=r"a\.txt beside it cannot be read \(not a regular file\)"):
        find_pairs(tmp_path / "pairs")
    with pytest.raises(CheckpointError, match=r"w\.safetensors: cannot be read \(not a regular file\)"):
        read_safetensors(pipe("w.safetensors"))
    with pytest.raises(DataError, match="not a regular file"):
        load("digits", classes=str(pipe("names.txt")))


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
    (tmp_path / "x.tar").write_bytes(sparse(name, 2**27) + bytes(1024))
    with pytest.raises(DataError, match=rf"x\.tar:{name}: a sparse file"):
        find_shards(tmp_path / "x.tar")


@pytest.mark.parametrize(("ending", "size"), [(".cls", 65), (".json", 2**20 + 1)])
def test_a_label_is_short(tmp_path: Path, ending: str, size: int) -> None:
    write_shard(tmp_path / "x.tar", [("a.png", encoded(1)), (f"a{ending}", b"1" * size)])
    with pytest.raises(DataError, match=rf"a{ending}: {size:,} bytes, expected a label of at most"):
        find_shards(tmp_path / "x.tar")


def test_arrays_larger_than_the_memory_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 9, 9), np.uint8), labels=np.arange(100) % 2)
    monkeypatch.setattr(npz, "of_machine", lambda: 8000)
    with pytest.raises(DataError, match=r"x\.npz: its arrays have 9,\d+ bytes, this machine has 8,000 of memory"):
        load("npz", str(tmp_path / "x.npz"))


def test_reading_a_run_writes_no_cache(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    data = DataConfig(name="folder", path=str(tmp_path / "photos"), cache=str(tmp_path / "cache"))
    config = Config(data=data, model=with_model(Config(), "vit_tiny", None).model.but(image_size=8))
    assert len(read_data(config).validation) == 2
    assert not (tmp_path / "cache").exists()


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
    said(["evaluate", str(planted)])
    said(["inspect", str(planted), "--image", str(tmp_path / "x.png"), "--out", str(tmp_path / "out.png")])
    said(["predict", str(planted), str(tmp_path / "x.png")])
    said(["convert", str(planted), str(tmp_path / "w.safetensors")])
    said(["export", str(planted), "--format", "safetensors", "--out", str(tmp_path / "e.safetensors")])
    assert "planted" not in sys.modules


@pytest.mark.parametrize("command", ["train --run RUN --resume", "finetune RUN --run NEW"])
def test_training_asks_before_it_imports_what_a_run_names(planted: Path, command: str, said: Any) -> None:
    words = [{"RUN": str(planted), "NEW": str(planted) + "2"}.get(word, word) for word in command.split()]
    text = said(words, 2)
    assert "data.transform='planted:f': the run's config.toml names it, and training would import it" in text
    assert "add --data.transform planted:f" in text
    words += ["--data.transform", "planted:f"]
    if "--resume" in words:
        assert "log='planted:f': the run's config.toml names it" in said(words, 2)
    assert "planted" not in sys.modules
    cli.main(
        [*words, "--log", "planted:f", "--mesh.expert", "7"]
    )  # a run that cannot be: after the import, before the run
    assert "planted" in sys.modules


def test_every_line_of_the_page_has_its_test() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^def (test_\w+)", file.read_text())
    }
    assert named - there == set()
    mine = set(re.findall(r"(?m)^def (test_\w+)", Path(__file__).read_text())) - {
        "test_every_line_of_the_page_has_its_test"
    }
    assert mine <= named
