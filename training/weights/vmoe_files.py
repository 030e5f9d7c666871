"""The sharded checkpoints of google-research/vmoe: `PREFIX.index` and `PREFIX.data-00000-of-0000N`, in msgpack.

The index has the keys `version`, `shard_count` and `index`. `index` is a tree whose leaves contain the shape, the dtype and the
shards of a parameter. A shard maps the number of a leaf (in JAX's pytree order: sorted keys) to parts of the parameter and their slices.

Source: `vmoe/checkpoints/partitioned.py`, `serialization.py` and `types.py`, version 20220622, and older checkpoints without a version,
which differ only in tree nodes that are not dictionaries.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import CheckpointError
from moespec.models.files import content_of, write_atomically
from moespec.models.pytrees import flatten
from moespec.training.interop.layouts import unwrapped

__all__ = ["is_vmoe_checkpoint", "prefix_of", "read_vmoe_checkpoint", "write_vmoe_checkpoint"]

VERSION = "20220622"
ARRAY, SLICES, INDEX = 1, 6, 8
"""Codes of vmoe's msgpack extension types: an array, slices, a leaf of the index."""
CHUNKS = "__msgpack_array_chunk_a87ca2__"
LARGEST_PART = 2**30
"""Largest chunk in bytes, `MAX_CHUNK_SIZE` in flax."""


class _Leaf(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[int, ...]


def prefix_of(path: Path) -> Path:
    """Returns the prefix of a checkpoint. path: the prefix or one of the files."""
    return path.with_name(re.sub(r"\.(index|data-\d+-of-\d+)$", "", path.name))


def is_vmoe_checkpoint(path: Path) -> bool:
    return _index(prefix_of(path)).is_file()


def read_vmoe_checkpoint(path: Path) -> dict[str, NDArray[Any]]:
    """Reads the parameters of a checkpoint by path, such as `Encoder/encoder_norm/scale`, without the optimiser's state.

    Raises CheckpointError, naming the file and the array, for missing or damaged files and for other versions.
    """
    prefix = prefix_of(path)
    tree, shards = _read_index(_index(prefix))
    numbers = {id(leaf): str(number) for number, leaf in enumerate(_leaves(tree))}
    wanted = {name: leaf for name, leaf in flatten(unwrapped(tree)).items() if isinstance(leaf, _Leaf)}
    arrays, filled = {}, {}
    for name, leaf in wanted.items():
        try:
            arrays[name] = np.zeros(leaf.shape, _stored(leaf.dtype))
            filled[name] = np.zeros(leaf.shape, bool)
        except (TypeError, ValueError, MemoryError) as error:
            raise CheckpointError(f"{_index(prefix)}: invalid {name!r}, {leaf.dtype} {leaf.shape}: {error}") from error
    for shard in sorted({shard for leaf in wanted.values() for shard in leaf.shards}):
        file = _shard(prefix, shard, shards)
        parts = _unpacked(file)
        if not isinstance(parts, dict) or CHUNKS not in parts:
            raise CheckpointError(f"{file}: not a checkpoint shard")
        for name, leaf in wanted.items():
            try:
                for part, slices in parts.get(numbers[id(leaf)], ()):
                    _fill(arrays[name], filled[name], np.concatenate(part), slices)
            except (TypeError, ValueError) as error:
                raise CheckpointError(f"{file}: {name!r}: {error}") from error
    for name in wanted:
        if missing := int(filled[name].size - filled[name].sum()):
            raise CheckpointError(f"{prefix}: {name!r} is incomplete: {missing} values are missing from the shards")
        if wanted[name].dtype == "bfloat16":
            arrays[name] = (arrays[name].astype("<u4") << 16).view("<f4")
    return arrays


def _read_index(path: Path) -> tuple[dict[str, Any], int]:
    """Reads the tree of leaves and the number of shards from the index."""
    index = _unpacked(path)
    tree = index.get("index") if isinstance(index, dict) else None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: not a checkpoint index")
    version, shards = index.get("version"), index.get("shard_count")
    if version not in (None, VERSION):
        raise CheckpointError(f"{path}: has version {version!r}, expected {VERSION!r}")
    if version is None and (training := {"step", "opt_state", "optimizer"} & tree.keys()):
        raise CheckpointError(f"{path}: older than version {VERSION} and has {min(training)!r}; only vmoe can read it")
    if not isinstance(shards, int) or not 0 < shards < 100_000:
        raise CheckpointError(f"{path}: shard_count={shards!r}: expected an integer from 1 to 99999")
    return tree, shards


def _fill(array: NDArray[Any], filled: NDArray[np.bool_], part: NDArray[Any], slices: Any) -> None:
    """Writes a flattened part of an array to the position given by `slices`. Raises ValueError if the part does not fit."""
    if not isinstance(slices, tuple) or len(slices) != array.ndim:
        raise ValueError(f"slices {slices!r} do not fit an array with {array.ndim} axes")
    for (start, stop), size in zip(slices, array.shape, strict=True):
        if not 0 <= start <= stop <= size:
            raise ValueError(f"the slice {start} to {stop} does not fit an axis of size {size}")
    if part.dtype != array.dtype:
        raise ValueError(f"the part has dtype {part.dtype}, expected {array.dtype}")
    where = tuple(slice(start, stop) for start, stop in slices)
    array[where] = part.reshape(array[where].shape)
    filled[where] = True


def write_vmoe_checkpoint(path: Path, tree: Mapping[str, Any]) -> None:
    """Writes a pytree of parameters as a checkpoint of one shard. Writes the index last, to mark the checkpoint as complete."""
    prefix = prefix_of(path)
    chunks: dict[str, Any] = {CHUNKS: True}
    numbers = iter(range(len(list(_leaves(tree)))))

    def leaf(array: NDArray[Any]) -> msgpack.ExtType:
        slices = msgpack.packb([msgpack.packb((0, size, None)) for size in array.shape])
        flat = array.ravel()
        size = LARGEST_PART // flat.itemsize
        split = [flat[start : start + size] for start in range(0, max(flat.size, 1), size)]
        parts = [msgpack.ExtType(ARRAY, msgpack.packb((part.shape, part.dtype.name, part.tobytes()))) for part in split]
        chunks[str(next(numbers))] = [[parts, msgpack.ExtType(SLICES, slices)]]
        return msgpack.ExtType(
            INDEX, msgpack.packb((msgpack.packb((array.shape, array.dtype.name, False, {})), [slices], [0]))
        )

    def indexed(node: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: indexed(node[key]) if isinstance(node[key], Mapping) else leaf(np.asarray(node[key], order="C"))
            for key in sorted(node)
        }

    index = {"shard_count": 1, "index": indexed(tree), "version": VERSION}
    write_atomically(_shard(prefix, 0, 1), msgpack.packb(chunks))
    write_atomically(_index(prefix), msgpack.packb(index))


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _shard(prefix: Path, shard: int, shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def _leaves(tree: Any) -> Iterator[Any]:
    """The leaves of a pytree in JAX's order."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from _leaves(tree[key])
    elif tree is not None:
        yield tree


def _unpacked(path: Path) -> Any:
    try:
        return msgpack.unpackb(content_of(path), ext_hook=_decoded)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise CheckpointError(f"{path}: not a checkpoint file ({type(error).__name__}: {error})") from error


def _decoded(code: int, data: bytes) -> Any:
    """Decodes the value of a msgpack extension type. Returns None for types that do not store parameters."""
    if code == ARRAY:
        shape, dtype, content = msgpack.unpackb(data, raw=True)
        return np.frombuffer(content, _stored(dtype.decode())).reshape(shape)
    if code == SLICES:
        slices = (msgpack.unpackb(one, raw=True) for one in msgpack.unpackb(data, raw=True))
        return tuple((start, stop) for start, stop, _ in slices)
    if code == INDEX:
        shaped, _, shards = msgpack.unpackb(data, raw=True)
        shape, dtype, *_ = msgpack.unpackb(shaped, raw=True)
        return _Leaf(tuple(shape), dtype.decode(), tuple(shards))
    return None


def _stored(dtype: str) -> np.dtype[Any]:
    """Returns the NumPy dtype that reads the values of a file. bfloat16, which NumPy lacks, is read as 16-bit integers."""
    return np.dtype("<u2" if dtype == "bfloat16" else dtype)
