"""Writes and reads arrays in shards: several processes write the files, and any number of processes can read the files.

Each tensor in a file is a complete array or a shard: `params/head/kernel@0,128` is the shard of `params/head/kernel` that
starts at row 0 and column 128.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from moespec.backends.mesh import Shards
from moespec.models.files import read_file, regular
from moespec.models.tensors import decoded, reason

__all__ = ["ArrayFile", "Stored", "digest", "named_pieces", "stored"]

Index = tuple[slice, ...]
AT = "@"


@dataclass(frozen=True)
class ArrayFile:
    """A safetensors file whose checksum is verified when its first array is read."""

    path: Path
    sha256: str

    @cached_property
    def content(self) -> bytes:
        """The full content. Raises ValueError if the file is damaged."""
        content = read_file(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError("damaged: its checksum does not match state.json")
        return content

    @cached_property
    def checked(self) -> bool:
        """Raises ValueError if the file is damaged. The first access reads the full file."""
        with open(self.path, "rb", opener=regular) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256:
                raise ValueError("damaged: its checksum does not match state.json")
        return True


@dataclass(frozen=True)
class Part:
    """A shard of an array: the start, the shape, the safetensors name of the dtype, and a function that reads a slice of the shard."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Index], NDArray[Any]]


class Stored:
    """An array in one or more files: `array[slice, ...]` reads a slice, and `np.asarray` reads the full array."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        ends = [tuple(a + n for a, n in zip(part.start, part.shape, strict=True)) for part in parts]
        self.shape = tuple(map(max, zip(*ends, strict=True)))
        self.stored_as = parts[0].dtype
        self.dtype = np.dtype(np.float64 if self.stored_as == "F64" else np.float32)
        if sum(math.prod(part.shape) for part in parts) != math.prod(self.shape):
            raise ValueError(f"its parts do not add up to shape {self.shape}")

    def __getitem__(self, index: Index) -> NDArray[Any]:
        bounds = [part.indices(size)[:2] for part, size in zip(index, self.shape, strict=False)]
        bounds += [(0, size) for size in self.shape[len(bounds) :]]
        result = np.empty([stop - start for start, stop in bounds], self.dtype)
        for part in self._parts:
            overlap = [
                (max(low, start), min(high, start + size))
                for (low, high), start, size in zip(bounds, part.start, part.shape, strict=True)
            ]
            if all(low < high for low, high in overlap):
                there = tuple(slice(low - a, high - a) for (low, high), a in zip(overlap, part.start, strict=True))
                here = tuple(slice(low - a, high - a) for (low, high), (a, _) in zip(overlap, bounds, strict=True))
                result[here] = part.read(there)
        if not np.isfinite(result).all():
            raise ValueError("contains NaN or infinity")
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[()].astype(dtype or self.dtype, copy=False)


def stored(files: Iterable[ArrayFile], *, whole: bool) -> dict[str, Stored]:
    """Returns the arrays in files, by name. whole: whether to read complete files immediately rather than slices on request.

    Raises ValueError for an invalid file and OSError for an unreadable file. The error names the file.
    """
    parts: dict[str, list[Part]] = {}
    for file in files:
        try:
            for name, part in (_in_memory if whole else _in_file)(file).items():
                base, _, start = name.partition(AT)
                offset = tuple(map(int, start.split(","))) if start else (0,) * len(part.shape)
                if len(offset) != len(part.shape):
                    raise ValueError(f"{name!r}: expected an offset with {len(part.shape)} numbers")
                parts.setdefault(base, []).append(Part(offset, part.shape, part.dtype, part.read))
        except ValueError as error:
            raise ValueError(f"{file.path}: {error}") from error
        except OSError as error:  # errors of safetensors do not name the file
            raise OSError(error.errno, error.strerror or str(error), str(file.path)) from error
    arrays = {}
    for name, own in parts.items():
        try:
            arrays[name] = Stored(own)
        except ValueError as error:
            raise ValueError(f"{file.path.parent}: {name}: {error}") from error
    return arrays


def _in_memory(file: ArrayFile) -> dict[str, Part]:
    tensors = decoded(file.content)
    return {name: Part((), of.array.shape, of.dtype, of.array.__getitem__) for name, of in tensors.items()}


def _in_file(file: ArrayFile) -> dict[str, Part]:
    """Returns the shards in a file. The `read` function of a shard reads from disk."""

    def reader(name: str) -> Callable[[Index], NDArray[Any]]:
        def read(index: Index) -> NDArray[Any]:
            _ = file.checked
            with safe_open(file.path, framework="numpy") as opened:
                part: NDArray[Any] = opened.get_slice(name)[index] if index else opened.get_tensor(name)
                return part

        return read

    try:
        with safe_open(file.path, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            return {name: Part((), shapes[name], part.get_dtype(), reader(name)) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {reason(error)}") from error


def named_pieces(arrays: Mapping[str, NDArray[Any] | Shards]) -> dict[str, NDArray[Any]]:
    """Returns the arrays or shards that this process saves, by tensor name."""
    named: dict[str, NDArray[Any]] = {}
    for name, value in arrays.items():
        if not isinstance(value, Shards):
            named[name] = np.asarray(value, order="C")
            continue
        for start, piece in value.shards:
            complete = piece.shape == value.shape
            named[name if complete else f"{name}{AT}{','.join(map(str, start))}"] = np.asarray(piece, order="C")
    return named


def digest(content: bytes) -> str:
    """Returns the SHA-256 checksum of the content of a file."""
    return hashlib.sha256(content).hexdigest()
