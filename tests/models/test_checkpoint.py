"""Checkpoints: exact, atomic, and every damage is noticed and named."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from moespec.models.errors import CheckpointError
from moespec.models.training import checkpoint
from moespec.models.training.checkpoint import Checkpoint

SHAPES = {"head": {"kernel": (3, 2), "bias": (2,)}, "scale": ()}
RECORD = {
    "step": 7,
    "config": {"a": None},
    "random": {"seed": 1, "step": 7},
    "data": {},
    "backend": "x",
    "seconds": 0.1,
}


def state(seed: int) -> dict:
    random = np.random.default_rng(seed)

    def tree() -> dict:
        return {
            "head": {
                "kernel": random.standard_normal((2, 3), np.float32).T,  # not in C order
                "bias": np.array([np.float32(1e-42), -0.0], np.float32),  # a denormal and a negative zero
            },
            "scale": np.float32(random.random()),
        }

    return {"params": tree(), "mu": tree(), "nu": tree(), "step": 7}


def written(folder: Path, *, step: int = 7, keep: int = 9, seed: int = 0) -> Path:
    record = {**RECORD, "step": step}
    return checkpoint.write(folder, Checkpoint({**state(seed), "step": step}, record), keep=keep)


def rewrite_record(path: Path, **changes: object) -> None:
    """Changes state.json and makes its checksum right again, to reach the checks behind it."""
    record = json.loads((path / "state.json").read_text())
    record.pop("sha256")
    record = {key: value for key, value in {**record, **changes}.items() if value is not None}
    record["sha256"] = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps(record))


def rewrite_arrays(path: Path, change) -> None:  # type: ignore[no-untyped-def]
    """Changes the arrays and makes all checksums right again."""
    arrays = safetensors.numpy.load((path / "arrays.safetensors").read_bytes())
    change(arrays)
    content = safetensors.numpy.save(arrays)
    (path / "arrays.safetensors").write_bytes(content)
    rewrite_record(path, arrays_sha256=hashlib.sha256(content).hexdigest())


def test_exact_bits(tmp_path: Path) -> None:
    read = checkpoint.read(written(tmp_path), SHAPES)
    assert read.record == {**RECORD, "format": 2, "arrays_sha256": read.record["arrays_sha256"]}
    assert read.state["step"] == 7
    for tree in ("params", "mu", "nu"):
        for name in ("kernel", "bias"):
            found, expected = read.state[tree]["head"][name], state(0)[tree]["head"][name]
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
        assert read.state[tree]["scale"].shape == ()
        assert read.state[tree]["scale"] == state(0)[tree]["scale"]


def test_nothing_is_pickled(tmp_path: Path) -> None:
    files = sorted(path.name for path in written(tmp_path).iterdir())
    assert files == ["arrays.safetensors", "state.json"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        written(tmp_path, step=step, keep=2)
    assert checkpoint.steps(tmp_path) == [15, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000015", "00000020"]
    assert checkpoint.latest(tmp_path) == tmp_path / "00000020"
    assert checkpoint.latest(tmp_path / "empty") is None


@pytest.mark.parametrize("name", ["arrays.safetensors", "state.json"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    written(tmp_path, step=3)
    path = written(tmp_path, step=7)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read.*To go on from step 3, remove"):
        checkpoint.read(path, SHAPES)
    with pytest.raises(CheckpointError, match=r"00000099/state\.json: cannot be read"):
        checkpoint.read(tmp_path / "00000099", SHAPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("mu/head/bias"), "no array 'mu/head/bias'"),
        (
            lambda arrays: arrays.update({"params/head/kernel": np.zeros((2, 3), np.float32)}),
            r"kernel is F32 \(2, 3\)",
        ),
        (lambda arrays: arrays.update({"nu/scale": np.zeros((), np.int32)}), r"nu/scale is I32 \(\)"),
        (
            lambda arrays: arrays.update({"params/x": np.zeros(1, np.float32)}),
            "'params/x' is not a parameter of the model",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_model(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path)
    rewrite_arrays(path, change)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path, SHAPES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 4, "version": "7.1"}, r"format 4, of moespec 7\.1; expected one of \(1, 2, 3\)"),
        ({"format": 3}, "no entry 'files'"),
        ({"format": 3, "files": {"../x": "0"}}, "files: '../x': not what"),
        ({"data": None}, "no entry 'data'"),
        ({"step": "7"}, r"state\.json: step='7': not what a checkpoint has there"),
        ({"step": 7.0}, r"state\.json: step=7\.0: not what"),
        ({"step": True}, r"state\.json: step=True: not what"),
        ({"config": []}, r"state\.json: config=\[\]: not what"),
        ({"seconds": "3"}, r"state\.json: seconds='3': not what"),
        ({"step": 8}, r"state\.json: step=8, in the folder of step 00000007"),
    ],
)
def test_records_that_cannot_be_used(tmp_path: Path, changes: dict, message: str) -> None:
    path = written(tmp_path)
    rewrite_record(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(path, SHAPES)


def test_not_safetensors(tmp_path: Path) -> None:
    path = written(tmp_path)
    (path / "arrays.safetensors").write_bytes(b"nothing")
    rewrite_record(path, arrays_sha256=hashlib.sha256(b"nothing").hexdigest())
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        checkpoint.read(path, SHAPES)


def test_a_dtype_that_numpy_does_not_have(tmp_path: Path) -> None:
    path = written(tmp_path)
    header = json.dumps({"params/scale": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (path / "arrays.safetensors").write_bytes(content)
    rewrite_record(path, arrays_sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(
        CheckpointError, match=r"arrays\.safetensors: 'params/scale' has dtype F8_E4M3, expected one of"
    ):
        checkpoint.read(path, SHAPES)


def test_numbers_in_bfloat16(tmp_path: Path) -> None:
    """They can be read, but are not what a run saved."""
    path = checkpoint.write(
        tmp_path, Checkpoint({tree: {"a": np.ones(2)} for tree in ("params", "mu", "nu")}, RECORD), keep=1
    )
    entries = {
        f"{tree}/a": {"dtype": "BF16", "shape": [2], "data_offsets": [4 * i, 4 * i + 4]}
        for i, tree in enumerate(("params", "mu", "nu"))
    }
    header = json.dumps(entries).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(12)
    (path / "arrays.safetensors").write_bytes(content)
    rewrite_record(path, arrays_sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(CheckpointError, match=r"params/a is BF16 \(2,\), expected F32"):
        checkpoint.read(path, {"a": (2,)})


def test_folders_that_are_not_checkpoints_do_not_count(tmp_path: Path) -> None:
    for name in ("5", "9²", "00000009.old", "0000001²", "٠٠٠٠٠٠٠١", "000000012", "00000012 (copy)"):
        (tmp_path / name).mkdir()
    assert checkpoint.steps(tmp_path) == []


@pytest.mark.parametrize("failing", ["write_synced", "sync_directory"])
def test_a_crash_while_writing_leaves_the_older_checkpoint(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the writing at each of its system calls in turn."""
    real = getattr(checkpoint, failing)
    for calls in range(2):
        written(tmp_path, step=1, keep=1) if not checkpoint.steps(tmp_path) else None
        left = calls

        def stop(*arguments: object, real=real) -> None:  # type: ignore[no-untyped-def]
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            real(*arguments)

        monkeypatch.setattr(checkpoint, failing, stop)
        with pytest.raises(KeyboardInterrupt):
            written(tmp_path, step=2, keep=1)
        monkeypatch.setattr(checkpoint, failing, real)
        newest = checkpoint.latest(tmp_path)
        assert newest is not None
        checkpoint.read(newest, SHAPES)
        checkpoint.sweep(tmp_path)
        assert not list(tmp_path.glob(".*"))
