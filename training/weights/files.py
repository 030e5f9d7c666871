"""Arrays in files: safetensors, npz without pickles, and JSON. Files are written whole or not at all.

Whatever is wrong with a file is a CheckpointError that names the file and the array.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import CheckpointError
from moespec.models.files import read_file, write_atomically
from moespec.models.memory import check_unpacked
from moespec.models.tensors import sealed, unsealed

__all__ = ["content_of", "read_json", "read_npz", "read_safetensors", "write_npz", "write_safetensors"]

Arrays = dict[str, NDArray[Any]]


def content_of(path: Path) -> bytes:
    """What is in a file. Raises CheckpointError if it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def read_safetensors(path: Path) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata of a safetensors file; bfloat16 becomes float32, which holds every value of it."""
    try:
        tensors, metadata = unsealed(content_of(path), half=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return {name: tensor.array for name, tensor in tensors.items()}, metadata


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """A safetensors file with a checksum, see `moespec.models.tensors`."""
    write_atomically(path, sealed(arrays, metadata))


def read_npz(path: Path) -> Arrays:
    """The arrays of an npz file; those of the dtype V2, which is how NumPy saves bfloat16, as float32. No pickle is read."""
    content, arrays, name = io.BytesIO(content_of(path)), {}, ""
    try:
        with zipfile.ZipFile(content) as archive:
            check_unpacked(archive.infolist())
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                with io.BytesIO(archive.read(member)) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                if array.dtype == np.dtype("V2"):
                    array = (array.view("<u2").astype("<u4") << 16).view("<f4")
                arrays[name] = array
    except (ValueError, EOFError, OSError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        where = f"{path}: {name!r}" if name else str(path)
        raise CheckpointError(f"{where}: not an array of an npz file ({error})") from error
    return arrays


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An uncompressed npz file; the same arrays give the same bytes."""
    content = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(content, allow_pickle=False, **named)
    write_atomically(path, content.getvalue())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for any other content."""
    value: dict[str, Any] = parsed(content_of(path), str(path))
    return value


def parsed(content: str | bytes, name: str, kind: type = dict) -> Any:
    """An object or a list of JSON. Raises CheckpointError, which begins with the name, for any other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: not JSON ({error})") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{name}: not a JSON {'object' if kind is dict else 'list'}")
    return value
