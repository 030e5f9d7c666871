"""Conversion to and from NumPy, the precision of routing computations, and the array operations that models use."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moespec.backends.pytrees import tree_map
from moespec.spec.checks import check_option

__all__ = [
    "arange",
    "broadcast_to",
    "cast",
    "concatenate",
    "cos",
    "default_device",
    "einsum",
    "from_numpy",
    "mean",
    "relu",
    "round_to_bfloat16",
    "sin",
    "softmax",
    "stop_gradient",
    "sum",
    "tanh",
    "to_numpy",
    "transpose",
]

Axis = int | tuple[int, ...]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


# Precision.


def wide(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype of affinities, losses and weights: float64 if one of `dtypes` is float64, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def widen(x: Tensor) -> Tensor:
    """Casts `x` to float32, unless `x` is float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Returns a context that turns autocast off on the device of `x`, so that matrix products keep their precision."""
    return torch.autocast("cpu" if x.device.type == "meta" else x.device.type, enabled=False)


# Conversion to and from NumPy.


def default_device() -> torch.device:
    """The device where `from_numpy` puts arrays: the CUDA device if there is one, else the CPU.

    All threads of a process use the CUDA device that `use_device` set. A process that did not call `use_device` uses
    the current CUDA device.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda") if _number is None else torch.device("cuda", _number)


_number: int | None = None


def use_device(number: int) -> None:
    """Sets the CUDA device of this process."""
    global _number
    _number = number
    torch.cuda.set_device(number)


def from_numpy(tree: Any, dtype: str | None = None) -> Any:
    """Copies the arrays of a nested dict, list or tuple to `default_device()`.

    The copies are in row-major order, because the memory layout of an array affects the rounding of sums, and files do
    not keep this layout. If `dtype` ("float64", "float32", "float16", "bfloat16") is given, floating arrays are cast to `dtype`,
    rounding to nearest even. Integers and booleans keep their dtype, and None stays None.
    """
    if dtype is not None:
        check_option("dtype", dtype, DTYPES)

    def convert(leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            tensor = leaf.detach().clone(memory_format=torch.contiguous_format)
        else:
            tensor = torch.tensor(np.asarray(leaf, order="C"))
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(DTYPES[dtype])
        return tensor.to(default_device())

    return tree_map(convert, tree)


def to_numpy(tree: Any) -> Any:
    """Copies the tensors of a nested container to NumPy arrays; bfloat16 and float16 become float32."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.detach().cpu()
        return (leaf.float() if leaf.dtype in (torch.bfloat16, torch.float16) else leaf).numpy().copy()

    return tree_map(convert, tree)


# Operations. Each operation has the same name in every backend.


def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """Einstein summation."""
    return torch.einsum(subscripts, *arrays)


def cos(x: Tensor) -> Tensor:
    """Cosine."""
    return torch.cos(x)


def sin(x: Tensor) -> Tensor:
    """Sine."""
    return torch.sin(x)


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`."""
    return torch.relu(x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return torch.tanh(x)


def arange(count: int, like: Tensor) -> Tensor:
    """`0, 1, ..., count - 1` in float64 if `like` is float64, else in float32."""
    return torch.arange(count, dtype=wide(like.dtype), device=like.device)


def cast(x: Tensor, dtype: str | torch.dtype) -> Tensor:
    """Casts `x` to a floating dtype or "int32". `dtype` is a name or the `.dtype` of a tensor."""
    return x.to({**DTYPES, "int32": torch.int32}[dtype] if isinstance(dtype, str) else dtype)


def round_to_bfloat16(x: Tensor) -> Tensor:
    """Rounds `x` to the nearest bfloat16 numbers, and keeps the dtype of `x`. Gradients are rounded in the same way."""
    return x.bfloat16().to(x.dtype)


def concatenate(arrays: Sequence[Tensor], axis: int) -> Tensor:
    """Joins arrays along an existing axis."""
    return torch.cat(list(arrays), dim=axis)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcasts `x` to `shape`, along axes of size 1 and new leading axes."""
    return torch.broadcast_to(x, tuple(shape))


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Permutes the axes of `x` to the order `axes`."""
    return x.permute(tuple(axes))


def mean(x: Tensor, axis: Axis | None = None) -> Tensor:
    """Mean over the given axes (all if None)."""
    return x.mean() if axis is None else x.mean(dim=axis)


def sum(x: Tensor, axis: Axis | None = None) -> Tensor:
    """Sum over the given axes (all if None)."""
    return x.sum() if axis is None else x.sum(dim=axis)


def softmax(x: Tensor, axis: int) -> Tensor:
    """`exp(x) / sum(exp(x))` along `axis`."""
    return torch.softmax(x, dim=axis)


def stop_gradient(x: Tensor) -> Tensor:
    """`x` as a constant."""
    return x.detach()
