"""Reads and writes the tensors of safetensors files, each with its dtype. Errors name the invalid tensor.

The metadata of a file from moespec contain the version that wrote the file, `moespec.version`, and a checksum of everything else,
`moespec.sha256`. A reader verifies the checksum if the file has one. Third-party files and files from version 0.1 have no checksum.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from moespec.version import version

__all__ = ["CHECKSUM", "StoredTensor", "decoded", "reason", "sealed", "unsealed"]

CHECKSUM, METADATA = "moespec.sha256", "__metadata__"

STORED = {"F32": "<f4", "F64": "<f8", "BOOL": "?"}
STORED |= {f"{k}{8 * n}": f"<{k.lower()}{n}" for k in "IU" for n in (1, 2, 4, 8)}


class StoredTensor(NamedTuple):
    """A tensor in a file: the safetensors name of the dtype, and the values, with bfloat16 converted to float32."""

    dtype: str
    array: NDArray[Any]


def reason(error: Exception) -> str:
    """Returns the message of a safetensors error without the name of the failed operation."""
    return re.sub(r"^Error while deserializing( header)?: ", "", str(error))


def decoded(content: bytes, *, half: bool = False) -> dict[str, StoredTensor]:
    """Returns the tensors in the content of a safetensors file, by name. half: whether to accept float16.

    Raises ValueError for damaged content, and for a dtype or a shape that NumPy does not support.
    """
    try:
        entries = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {reason(error)}") from error
    tensors = {}
    for name, entry in entries:
        dtype, data, shape = entry["dtype"], entry["data"], entry["shape"]
        if dtype == "BF16":
            array = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        elif half and dtype == "F16":
            array = np.frombuffer(data, "<f2")
        elif dtype in STORED:
            array = np.frombuffer(data, STORED[dtype])
        else:
            raise ValueError(f"{name!r} has dtype {dtype}, expected one of {', '.join(['BF16', *STORED])}")
        try:
            tensors[name] = StoredTensor(dtype, array.reshape(shape))
        except (ValueError, OverflowError) as error:  # NumPy limits the number of axes and the size of an axis
            raise ValueError(f"{name!r} has an impossible shape: {error}") from error
    return tensors


def sealed(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the content of a safetensors file, with the version and a checksum in the metadata. Equal arrays give equal bytes."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous, {"moespec.version": json.dumps(version()), **(metadata or {})})
    header, rest = _parts(content)
    about = {**header[METADATA], CHECKSUM: _digest(header, rest)}
    text = json.dumps(
        {METADATA: dict(sorted(about.items())), **{name: header[name] for name in header if name in arrays}}
    )
    text += " " * (-len(text) % 8)  # aligns the numbers
    return b"".join((len(text).to_bytes(8, "little"), text.encode(), rest))


def unsealed(content: bytes, *, half: bool = False) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Returns the tensors and metadata in a safetensors file. Raises ValueError as `decoded` does, and for a wrong checksum."""
    tensors = decoded(content, half=half)
    header, rest = _parts(content)
    metadata: dict[str, str] = header.get(METADATA, {})
    if CHECKSUM in metadata and metadata[CHECKSUM] != _digest(header, rest):
        raise ValueError("damaged or edited: its checksum does not match its content")
    return tensors, metadata


def _parts(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Splits the content of a safetensors file into the header and the bytes of the tensors."""
    size = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:size]), memoryview(content)[size:]


def _digest(header: Mapping[str, Any], rest: memoryview) -> str:
    """Returns the SHA-256 of a file's tensors and of the header without the checksum."""
    about = {name: text for name, text in header.get(METADATA, {}).items() if name != CHECKSUM}
    digest = hashlib.sha256(json.dumps({**header, METADATA: about}, sort_keys=True).encode())
    digest.update(rest)
    return digest.hexdigest()
