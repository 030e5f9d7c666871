"""Arrays in files: safetensors, and npz without pickles. A write is atomic.

Errors are CheckpointErrors that name the file and the array.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import CheckpointError
from moespec.models.files import content_of, write_atomically
from moespec.models.tensors import sealed, unsealed
from moespec.training.data.npz import read_arrays

__all__ = ["read_npz", "read_safetensors", "write_npz", "write_safetensors"]

Arrays = dict[str, NDArray[Any]]


def read_safetensors(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Returns the arrays and metadata of a safetensors file, with bfloat16 converted to float32 without loss."""
    try:
        tensors, metadata = unsealed(content_of(path), half=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return {name: tensor.array for name, tensor in tensors.items()}, metadata


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file with a checksum, see `moespec.models.tensors`."""
    write_atomically(path, sealed(arrays, metadata))


def read_npz(path: Path) -> Arrays:
    """Returns the arrays of an npz file. Converts bfloat16, which NumPy stores as the dtype V2, to float32. Never unpickles."""
    try:
        arrays = read_arrays(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not a readable .npz file of arrays ({error})") from error
    bfloat16 = {name: array for name, array in arrays.items() if array.dtype == np.dtype("V2")}
    return arrays | {name: (array.view("<u2").astype("<u4") << 16).view("<f4") for name, array in bfloat16.items()}


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes an uncompressed npz file; equal arrays give equal bytes."""
    content = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(content, allow_pickle=False, **named)
    write_atomically(path, content.getvalue())
