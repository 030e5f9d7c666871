"""Checkpoints and their files: exact, on the disk before they have their names, and every damage is noticed and named.

Damages that come with right checksums could come from another version, or from someone who edits.
"""

import hashlib
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from damaged import damaged, safetensors_of

from moespec.conformance.check import files
from moespec.models.errors import CheckpointError
from moespec.models.files import signed, unfinished, write_atomically, write_synced
from moespec.models.pytrees import flatten
from moespec.models.tensors import decoded
from moespec.spec.errors import SpecError
from moespec.training.loop import checkpoint
from moespec.training.loop.checkpoint import Checkpoint, Saver
from moespec.training.loop.config_compatibility import NUMBER
from moespec.training.loop.resolve import load_backend, load_data
from moespec.training.loop.resume import begin, trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import RunLog

SHAPES = {"head": {"kernel": (3, 2), "bias": (2,)}, "scale": ()}
RECORD = {"config": {"a": None}, "random": {"seed": 1, "step": 7}, "data": {}, "backend": "x", "seconds": 0.1}
TREES = ("params", "mu", "nu")
POSIX = pytest.mark.skipif(os.name != "posix", reason="folders are synchronised on POSIX alone")


def state(step: int = 7) -> dict[str, Any]:
    random = np.random.default_rng(0)

    def tree() -> dict[str, Any]:
        kernel = random.standard_normal((2, 3), np.float32).T  # not in C order
        bias = np.array([np.float32(1e-42), -0.0], np.float32)  # a denormal and a negative zero
        return {"head": {"kernel": kernel, "bias": bias}, "scale": np.float32(random.random())}

    return {**{name: tree() for name in TREES}, "step": step}


def written(folder: Path, *, step: int = 7, keep: int = 9) -> Path:
    return checkpoint.write(folder, Checkpoint(state(step), {**RECORD, "step": step}), keep=keep)


def amended(path: Path, **changes: Any) -> None:
    """Changes state.json, or removes what becomes `...`, with a right checksum, to reach the checks behind it."""
    record = {**json.loads((path / "state.json").read_text()), **changes}
    record.pop("sha256")
    checkpoint.amend(path, {key: value for key, value in record.items() if value is not ...})


def test_exact_bits_and_nothing_pickled(tmp_path: Path) -> None:
    path, expected = written(tmp_path), state()
    read = checkpoint.read(path, SHAPES)
    assert read.record == {**RECORD, "step": 7, "format": 2, "arrays_sha256": read.record["arrays_sha256"]}
    assert read.state["step"] == 7
    for tree in TREES:
        values, others = (flatten(one[tree]) for one in (read.state, expected))
        assert {name: (value.shape, value.tobytes()) for name, value in values.items()} == {
            name: (value.shape, np.asarray(value, order="C").tobytes()) for name, value in others.items()
        }
    assert sorted(file.name for file in path.iterdir()) == ["arrays.safetensors", "state.json"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    """And no other folder is taken for one."""
    others = {"5", "9²", "00000009.old", "0000001²", "٠٠٠٠٠٠٠١", "000000012", "00000030 (copy)"}
    for name in others:
        (tmp_path / name).mkdir()
    for step in (5, 10, 15, 20):
        written(tmp_path, step=step, keep=2)
    assert checkpoint.steps(tmp_path) == [15, 20]
    assert {path.name for path in tmp_path.iterdir()} == {"00000015", "00000020", *others}
    assert checkpoint.latest(tmp_path) == tmp_path / "00000020"
    assert checkpoint.latest(tmp_path / "empty") is None


def amended_arrays(path: Path, **changes: Any) -> None:
    """Changes arrays, or removes those that become `...`, with right checksums."""
    arrays = {**safetensors.numpy.load((path / "arrays.safetensors").read_bytes()), **changes}
    content = safetensors.numpy.save({key: value for key, value in arrays.items() if value is not ...})
    (path / "arrays.safetensors").write_bytes(content)
    amended(path, arrays_sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "arrays.safetensors").unlink(), r"arrays\.safetensors: cannot be read.*To resume from step 3"),
        (lambda path: (path / "state.json").unlink(), r"state\.json: cannot be read.*To resume from step 3, remove"),
        (shutil.rmtree, r"00000007/state\.json: cannot be read"),
        (partial(amended_arrays, **{"mu/head/bias": ...}), "the array 'mu/head/bias' is missing"),
        (partial(amended_arrays, **{"params/head/kernel": np.zeros((2, 3), np.float32)}), r"kernel is F32 \(2, 3\)"),
        (partial(amended_arrays, **{"params/x": np.zeros(1, np.float32)}), "'params/x' is not an array of this model's"),
        (partial(amended, format=4, version="7.1"), r"has format 4 of moespec 7\.1, expected one of \(1, 2, 3\)"),
        (partial(amended, format=3, files={"../x": "0"}), "files: '../x': invalid"),
        (partial(amended, step=True), r"state\.json: step=True: invalid"),
        (partial(amended, config={"optimizer": {"name": "shampoo"}}), "config.optimizer: name='shampoo': expected one of adamw"),
        (partial(amended, step=8), r"state\.json: step=8, but its folder is 00000007"),
    ],
)  # fmt: skip
def test_checkpoints_that_cannot_be_used(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    written(tmp_path, step=3)
    damage(path := written(tmp_path, step=7))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path, SHAPES)


# -------------------------------------------------------------------------------------- in what order files reach the disk


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synchronised, and with how many bytes, and what is renamed, in order, with names within `tmp_path`."""
    lines: list[str] = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        name = next(  # by its number, as no system but Linux tells a descriptor's name
            path.relative_to(tmp_path).as_posix()
            for path in (tmp_path, *tmp_path.rglob("*"))
            if path.stat().st_ino == status.st_ino
        )
        lines.append(f"sync {name}" if stat.S_ISDIR(status.st_mode) else f"sync {name} of {status.st_size}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr("secrets.token_hex", lambda _: "random")
    for name in ("rename", "replace"):
        real = getattr(os, name)

        def renamed(source: Any, target: Any, *, real: Any = real, **options: Any) -> None:
            lines.append(" to ".join(Path(path).relative_to(tmp_path).as_posix() for path in (source, target)))
            real(source, target, **options)

        monkeypatch.setattr(os, name, renamed)
    return lines


@POSIX
def test_no_link_is_followed_where_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes that write one name each has a file of its own, and one that was there first is an error."""
    (tmp_path / "other").write_bytes(b"other")
    assert len({unfinished(tmp_path / "x") for _ in range(9)}) == 9
    monkeypatch.setattr("secrets.token_hex", lambda _: "random")
    for link in (tmp_path / ".x.random.tmp", tmp_path / "y"):
        link.symlink_to("other")
    for write, path in ((write_atomically, tmp_path / "x"), (write_synced, tmp_path / "y")):
        with pytest.raises(FileExistsError, match=r"random\.tmp" if path.name == "x" else "y"):
            write(path, b"new")
    assert (tmp_path / "other").read_bytes() == b"other"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"new")
    assert not (tmp_path / ".folder.random.tmp").exists(), "what cannot have its name is removed"


@POSIX
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, calls: list[str]) -> None:
    """And the older one goes after that, under a name that is none of a checkpoint; records are replaced whole, logs grow."""
    written(tmp_path, step=1, keep=1)
    del calls[:]
    written(tmp_path, step=2, keep=1)
    sizes = {name: (tmp_path / "00000002" / name).stat().st_size for name in ("arrays.safetensors", "state.json")}
    assert calls == [
        *(f"sync .00000002.tmp/{name} of {size}" for name, size in sizes.items()),
        *("sync .00000002.tmp", ".00000002.tmp to 00000002", "sync .", "00000001 to .00000001.old.tmp"),
    ]
    del calls[:]
    amended(tmp_path / "00000002", seconds=2.0)
    size, temporary = (tmp_path / "00000002/state.json").stat().st_size, "00000002/.state.json.random.tmp"
    assert calls == [f"sync {temporary} of {size}", f"{temporary} to 00000002/state.json", "sync 00000002"]
    log = RunLog(tmp_path, 0)
    log.write("train", 1, {"loss": 0.5})
    assert len(calls) == 3, "each line is written at once"
    log.sync()
    log.close()
    assert calls[3:] == [f"sync metrics.jsonl of {(tmp_path / 'metrics.jsonl').stat().st_size}"]


def test_the_log_is_on_the_disk_before_the_checkpoint(tmp_path: Path, runs: Any, monkeypatch: Any) -> None:
    """As a run that goes on drops lines, and cannot make up for lines that are lost. What a killed process left is swept."""
    run, order = runs.broken("torch", tmp_path / "run", step=8), []
    left = [run / name for name in (".report.html.01234567.tmp", "checkpoints/00000008/.state.json.01234567.tmp")]
    for rest in left:
        rest.write_bytes(b"half")
    for rest in (".00000012.tmp", ".00000004.old.tmp"):
        (run / "checkpoints" / rest).mkdir()
        (run / "checkpoints" / rest / "arrays.safetensors").write_bytes(b"half")
    log, save = RunLog.sync, Saver.save
    monkeypatch.setattr(RunLog, "sync", lambda self: (order.append("log"), log(self)))
    monkeypatch.setattr(Saver, "save", lambda *arguments: (order.append("checkpoint"), save(*arguments)))
    runs.train(run, "torch")
    assert order == ["log", "checkpoint"]
    assert not any(rest.exists() for rest in left)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["00000008", "00000012"]


# --------------------------------------------------------------------- safetensors that lie, or have what NumPy does not


def of(dtype: str, size: int, shape: list[int]) -> bytes:
    """A file with the tensor `tables`."""
    return safetensors_of({"tables": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}, bytes(size))


UNKNOWN = {"F8_E4M3": 4, "F8_E5M2": 4, "F8_E8M0": 4, "F6_E2M3": 3, "F4": 2, "F16": 8, "C64": 32}
"""Bytes of four numbers of each dtype."""
LONG = {"many axes": of("F32", 4, [1] * 100), "a long axis": of("F32", 0, [0, 2**63])}
LIES = {
    "nothing": b"",
    "a header of 100 MB": safetensors_of(b"{}", length=100_000_000),
    "deep metadata": safetensors_of(b'{"__metadata__":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001),
    "a shape of texts": safetensors_of({"tables": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}, bytes(4)),
    "no such dtype": of("X9", 4, [1]),
    "fewer bytes": safetensors_of({"tables": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8)),
    "more bytes": of("I32", 16, [4]) + b"\0",
    "a negative axis": of("F32", 4, [-1]),
}
FILES = {
    **{name: (of(name, size, [4]), rf"'tables' has dtype {name}, expected one of BF16, F32, ") for name, size in UNKNOWN.items()},
    **{name: (file, "'tables' has an impossible shape") for name, file in LONG.items()},
    **{name: (file, "not a safetensors file") for name, file in LIES.items()},
}  # fmt: skip


READERS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "content": (lambda path: decoded(path.read_bytes()), ValueError, ""),
    "results": (files.read, files.FileError, r"x\.safetensors: "),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, reader: str) -> None:
    path = tmp_path / "x.safetensors"
    file, message = FILES[name]
    path.write_bytes(file)
    read, kind, where = READERS[reader]
    with pytest.raises(kind, match=f"{where}.*{message}"):
        read(path)


def test_bfloat16_is_read_as_float32() -> None:
    """All other dtypes are in the vectors of the suite."""
    header = {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    dtype, array = decoded(safetensors_of(header, b"\x80\x3f\x20\xc0"))["x"]
    assert (dtype, array.dtype, array.tolist()) == ("BF16", np.float32, [1.0, -2.5])


# --------------------------------------------------------------------------------------------------- damage at random

DAMAGES = 200


def spoiled(content: bytes, draw: random.Random) -> bytes:
    """What may happen to the bytes of a file."""
    start, end = draw.randrange(len(content)), draw.randint(1, 4096)
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    zeroed = content[:start] + bytes(len(content[start : start + end])) + content[start + 4096 :]
    return draw.choice([bytes(flipped), content[:start], zeroed, content + draw.randbytes(draw.randint(1, 64))])


def test_damaged_checkpoints(runs: Any, tmp_path: Path) -> None:
    """None ends in a traceback, and none is used as it is."""
    run, draw = tmp_path / "run", random.Random(0)
    shutil.copytree(runs.whole("torch"), run)
    directory = RunDirectory(run)
    config = directory.config()
    newest = run / "checkpoints" / "00000012"
    originals = {name: (newest / name).read_bytes() for name in ("arrays.safetensors", "state.json")}
    record = json.loads(originals["state.json"])
    sums = dict.fromkeys(("sha256", "arrays_sha256"))
    required = {name: record[name] for name in (*RECORD, "step", "format", "arrays_sha256")}
    forged = damaged(required, DAMAGES, free={"config"})
    B, examples = load_backend("torch"), len(load_data(config).train)

    def read() -> dict[str, Any]:
        directory.claim(config, resume=True)
        return flatten(B.export_state(begin(B, config, directory, stamp={NUMBER: examples}, initial=dict).state))

    expected, notices = read(), list[str]()
    assert expected["step"] == 12
    for number in range(DAMAGES):
        name, contents = draw.choice(list(originals)), dict(originals)
        where = f"damage {number}: {name}"
        if number % 3:
            contents[name] = spoiled(originals[name], draw)
        else:
            what, entries = next(forged)
            contents["state.json"], where = signed(entries), f"{where}, {what}"
        for file, text in contents.items():
            (newest / file).write_bytes(text)
        print(where)
        try:
            values = read()
        except SpecError as error:
            notices.append(str(error))
            continue
        # A checkpoint that says the same in other words.
        assert values.pop("step") == 12
        for path, value in values.items():
            assert value.tobytes() == expected[path].tobytes(), path
        assert json.loads((newest / "state.json").read_text()) | sums == record | sums
    assert len(notices) > 0.95 * DAMAGES
    assert [text for text in notices if str(run) not in text] == [], "the file is named"
    shutil.rmtree(newest)
    assert trained_params(directory, config)[1] == 8, "the one before it is as it was"
