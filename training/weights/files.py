"""Arrays in files: safetensors, npz without pickles, and JSON. Files are written whole or not at all.

Whatever is wrong with a file is a CheckpointError that names the file and the array.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import CheckpointError
from moespec.models.files import read_file, write_atomically
from moespec.models.tensors import sealed, unsealed
from moespec.spec.errors import SpecError
from moespec.training.data.npz import read_arrays

__all__ = ["content_of", "read_json", "read_npz", "read_safetensors", "write_npz", "write_safetensors"]

Arrays = dict[str, NDArray[Any]]


def content_of(path: Path, kind: type[SpecError] = CheckpointError) -> bytes:
    """The content of a file. Raises `kind` if it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror})") from error


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
    try:
        arrays = read_arrays(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not an npz file of arrays ({error})") from error
    bfloat16 = {name: array for name, array in arrays.items() if array.dtype == np.dtype("V2")}
    return arrays | {name: (array.view("<u2").astype("<u4") << 16).view("<f4") for name, array in bfloat16.items()}


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An uncompressed npz file; the same arrays give the same bytes."""
    content = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(content, allow_pickle=False, **named)
    write_atomically(path, content.getvalue())


def read_json(path: Path, kind: type[SpecError] = CheckpointError, expected: type = dict) -> Any:
    """The JSON in a file, an object or another type that is `expected`. Raises `kind` for any other content."""
    return parsed(content_of(path, kind), str(path), expected, kind)


def parsed(content: str | bytes, name: str, expected: type = dict, kind: type[SpecError] = CheckpointError) -> Any:
    """The value of a JSON text of the type `expected`. Raises `kind`, which begins with the name, for any other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise kind(f"{name}: not JSON ({error})") from error
    if not isinstance(value, expected):
        raise kind(f"{name}: not a JSON {'object' if expected is dict else 'list'}")
    return value
