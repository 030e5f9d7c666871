"""The tensors of a safetensors file, each with its dtype. An error names the tensor that is wrong."""

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

__all__ = ["Found", "decoded", "reason"]

STORED = {"F32": "<f4", "F64": "<f8", "BOOL": "?"}
STORED |= {f"{k}{8 * n}": f"<{k.lower()}{n}" for k in "IU" for n in (1, 2, 4, 8)}


class Found(NamedTuple):
    """A tensor of a file: its dtype by the name that safetensors gives it, and its numbers, bfloat16 as float32."""

    dtype: str
    array: NDArray[Any]


def reason(error: Exception) -> str:
    """What safetensors says, without what it was doing."""
    return re.sub(r"^Error while deserializing( header)?: ", "", str(error))


def decoded(content: bytes, *, half: bool = False) -> dict[str, Found]:
    """The tensors of a safetensors file with that content; with `half`, float16 is one of the dtypes that it may have.

    Raises ValueError if there is anything that is not such a tensor: damage, a dtype or a shape that NumPy does not have.
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
            tensors[name] = Found(dtype, array.reshape(shape))
        except (ValueError, OverflowError) as error:  # too many axes, or 0 numbers along an axis of 2^63
            raise ValueError(f"{name!r} has a shape that no array can have: {error}") from error
    return tensors
