"""Decomposes moespec's operators into ATen operations, for inference programs that run where this package is not installed.

An operator is decomposed into the ATen operations that its function calls, unless the function changes a tensor that it did not create
or reads a tensor's values on the host. This module replaces all other operators with functions that have the same arguments and results.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch import gathers, grouped, private, products, rng, selection, solvers
from moespec.backends.torch.arrays import wide
from moespec.backends.torch.operators import FUNCTIONS, NAMESPACE

DEFINING = (gathers, grouped, products, rng, selection, solvers)
"""Modules that define operators. Importing them fills `FUNCTIONS`."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Maps each torch operator to the function that replaces it. Operators that only training uses are omitted."""
    return {overload(name): OTHERS.get(name, function) for name, function in FUNCTIONS.items() if name != "balanced"}


def overload(name: str) -> Any:
    """Returns the overload of the operator `name` that exported programs contain."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def gather_rows(rows: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, index)


def sum_rows(rows: Tensor, index: Tensor, count: int, inverse: Tensor | None = None) -> Tensor:
    return _sum(rows.to(wide(rows.dtype)), index, count, inverse).to(rows.dtype)


def combine_rows(
    rows: Tensor, weight: Tensor, index: Tensor, count: int, inverse: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return _sum(rows.to(wide(rows.dtype, weight.dtype)) * weight[:, None], index, count, inverse).to(dtype)


def _sum(rows: Tensor, index: Tensor, count: int, inverse: Tensor | None) -> Tensor:
    if inverse is None:
        return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, index.long(), rows)[:count]
    return gather_rows(rows, inverse.reshape(-1)).reshape(*inverse.shape, rows.shape[1]).sum(dim=1)


def affine_rows(rows: Tensor, kernel: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """Multiplies each expert's rows by its kernel and adds its bias, if any. The numbers of rows are known only at run time."""
    count, start, parts = rows.shape[0], 0, []
    for expert in range(kernel.shape[0]):
        end: Any = ends[expert].item()
        private.check(end >= start)
        private.check(end <= count)
        products = rows[start:end] @ kernel[expert]
        parts.append(products if bias is None else products + bias[expert])
        start = end
    return torch.cat([*parts, rows.new_zeros(count - start, kernel.shape[2])])


def top_indices(scores: Tensor, count: int) -> Tensor:
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count].int()


OTHERS: dict[str, Callable[..., Any]] = {
    "gather_rows": gather_rows,
    "sum_rows": sum_rows,
    "combine_rows": combine_rows,
    "affine_rows": affine_rows,
    "top_indices": top_indices,
}
