"""Safetensors files that lie, or that hold what NumPy does not have: named errors in all that read such files."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from moespec.conformance import manifest
from moespec.conformance.check import files
from moespec.conformance.format import VectorError
from moespec.models.errors import CheckpointError, DataError
from moespec.models.tensors import decoded
from moespec.models.training import checkpoint, hash_tables
from moespec.models.vit import VitConfig, named


def content(header: Any, rest: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


def of(dtype: str, size: int, shape: list[int]) -> bytes:
    """A file with the tensor `tables`."""
    return content({"tables": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}, bytes(size))


UNKNOWN = {
    "F8_E4M3": of("F8_E4M3", 4, [4]),
    "F8_E5M2": of("F8_E5M2", 4, [4]),
    "F8_E8M0": of("F8_E8M0", 4, [4]),
    "F6_E2M3": of("F6_E2M3", 3, [4]),
    "F4": of("F4", 2, [4]),
    "F16": of("F16", 8, [4]),
    "C64": of("C64", 32, [4]),
}
"""Well-formed files, by the dtype of their tensor."""

SHAPES = {"many axes": of("F32", 4, [1] * 100), "a long axis": of("F32", 0, [0, 2**63])}

LIES = {
    "nothing": b"",
    "no header": b"\xff" * 8,
    "a long header": content(b"{}", length=2**62),
    "a header of 100 MB": content(b"{}", length=100_000_000),
    "deep lists": content(b"[" * 100_000),
    "deep objects": content(b'{"a":' * 100_000),
    "deep metadata": content(b'{"__metadata__":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001),
    "a list": content([]),
    "no entry": content({"tables": 3}),
    "no such dtype": of("X9", 4, [1]),
    "fewer bytes": content({"tables": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8)),
    "other bytes": content({"tables": {"dtype": "I32", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)),
    "more bytes": of("I32", 16, [4]) + b"\0",
    "a product beyond 64 bits": of("F32", 0, [2**62, 4]),
    "a negative axis": of("F32", 4, [-1]),
}

FILES = {
    **{name: (file, rf"'tables' has dtype {name}, expected one of BF16, F32, ") for name, file in UNKNOWN.items()},
    **{name: (file, "'tables' has a shape that no array can have") for name, file in SHAPES.items()},
    **{name: (file, "not a safetensors file") for name, file in LIES.items()},
}


def model() -> VitConfig:
    return named(
        "vit_tiny", router="hash", moe="last_1", experts=4, token_ids="position", channels=1, classes=10, image_size=8
    )


def read_tables(path: Path) -> None:
    with pytest.raises(DataError, match=f"{path}.*not a readable file of moespec hash-table") as error:
        hash_tables.read(path, model())
    raise ValueError(str(error.value))


def read_checkpoint(path: Path) -> None:
    """The file as the arrays of a checkpoint whose checksums are right."""
    folder = path.parent / "00000007"
    record = {"step": 7, "config": {}, "random": {}, "data": {}, "backend": "torch", "seconds": 1.0}
    trees = {tree: {"tables": np.zeros(4, np.float32)} for tree in ("params", "mu", "nu")}
    checkpoint.write(path.parent, checkpoint.Checkpoint({**trees, "step": 7}, record), keep=1)
    (folder / "arrays.safetensors").write_bytes(path.read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    checkpoint.amend(folder, {**record, "format": 1, "arrays_sha256": digest})
    with pytest.raises(CheckpointError, match=f"{folder}/arrays.safetensors: ") as error:
        checkpoint.read(folder, {"tables": (4,)})
    raise ValueError(str(error.value))


def read_results(path: Path) -> None:
    with pytest.raises(files.FileError, match=f"{path}: ") as error:
        files.read(path)
    raise ValueError(str(error.value))


def read_vector(path: Path) -> None:
    """The file beside a manifest that has its checksum."""
    beside = path.with_suffix(".json")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    beside.write_text(json.dumps({"schema": manifest.SCHEMA, "tensors": {"file": path.name, "sha256": digest}}))
    with pytest.raises(VectorError, match=f"{path}: ") as error:
        manifest.read(beside)
    raise ValueError(str(error.value))


READERS: list[Callable[[Path], Any]] = [
    *(lambda path: decoded(path.read_bytes()), read_tables, read_checkpoint, read_results, read_vector)
]


@pytest.mark.parametrize("read", READERS, ids=["content", "hash_table", "checkpoint", "results", "vector"])
@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "x.safetensors"
    file, message = FILES[name]
    path.write_bytes(file)
    expected = "not a readable file of moespec hash-table" if read is read_tables and name in LIES else message
    with pytest.raises(ValueError, match=expected):
        read(path)


def test_what_can_be_read() -> None:
    """The numbers as they were written; bfloat16 as float32, with the dtype that the file has."""
    arrays = {
        **{
            dtype: np.arange(6, dtype=dtype).reshape(2, 3)
            for dtype in ("float32", "float64", "int8", "uint16", "int64")
        },
        **{"bool": np.array([True, False]), "scalar": np.array(2.5), "empty": np.zeros((0, 3), np.float32)},
    }
    found = decoded(safetensors.numpy.save(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].array.dtype == array.dtype
        np.testing.assert_array_equal(found[name].array, array)
    header = {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    dtype, array = decoded(content(header, b"\x80\x3f\x20\xc0"))["x"]
    assert (dtype, array.dtype, array.tolist()) == ("BF16", np.float32, [1.0, -2.5])


@pytest.mark.parametrize("dtype", ["BF16", "F64", "I32"])
def test_a_codebook_is_of_float32(tmp_path: Path, dtype: str) -> None:
    """bfloat16 too would lose what k-means found."""
    hashed = named(
        "vit_tiny", router="hash", codes=2, moe="last_1", experts=4, patch_size=4, channels=1, classes=10, image_size=8
    )
    codebook = np.zeros((2, 16), np.float32)
    hash_tables.write(tmp_path / "x", hash_tables.HashTables(codebook, np.zeros((1, 2), np.int32)), hashed)
    hash_tables.read(tmp_path / "x", hashed)
    (length,) = struct.unpack("<Q", (tmp_path / "x").read_bytes()[:8])
    header = json.loads((tmp_path / "x").read_bytes()[8 : 8 + length])
    size = {"BF16": 2, "F64": 8, "I32": 4}[dtype] * codebook.size
    header["codebook"] = {"dtype": dtype, "shape": [2, 16], "data_offsets": [8, 8 + size]}
    header["tables"] = {"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 8]}
    (tmp_path / "x").write_bytes(content(header, bytes(8 + size)))
    with pytest.raises(DataError, match=f"x: codebook has dtype {dtype}, expected F32"):
        hash_tables.read(tmp_path / "x", hashed)
