"""Multiplies rows, sorted by expert, by the experts' matrices, on a TPU with the kernels of `jax.experimental.pallas.ops.tpu.megablox`.

The kernels are JAX's version of the kernels of Gale et al. 2022 (MegaBlocks, arXiv 2211.15841), which need no padding. A kernel reads each
row once per tile of the width, and an expert's matrix once per tile of the expert's rows. With `interpret`, a kernel runs on a CPU.

Shape comments: R rows, E experts, D width, H hidden.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
from jax import custom_batching, lax
from jax.experimental import custom_partitioning

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.explicit import untyped

TILE = 256
"""The number of rows in a tile. At this size, a TPU v5e (240 operations per byte) needs longer to multiply than to reread the matrix."""


_LEFT_OUT: ContextVar[bool] = ContextVar("_LEFT_OUT", default=False)


@contextmanager
def left_out() -> Iterator[None]:
    """In this context, traced code uses no kernels, because JAX cannot export kernels in a program for several platforms."""
    token = _LEFT_OUT.set(True)
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def takes(rows: Array) -> bool:
    """True if the kernels are enabled and support the dtype of these rows."""
    return not _LEFT_OUT.get() and rows.dtype in (jnp.bfloat16, jnp.float32) and not untyped.config.jax_enable_x64


def products(
    rows: Array, kernel: Array, ends: Array, bias: Array | None = None, *, turned: bool = False, interpret: bool = False
) -> Array:
    """Computes `rows @ kernel[e] + bias[e]`, or `rows @ kernel[e]^T` if `turned`: rows (R, D), kernel (E, D, H), bias (E, H) -> (R, H).

    The rows of expert e end at `ends[e]`, for ends (E,). R is a multiple of TILE. The results for rows without an expert are undefined.
    """
    width = kernel.shape[1 if turned else 2]
    tiling = (TILE, _tile(rows.shape[1], rows.dtype), _tile(width, rows.dtype))
    product = partial(
        _kernels().gmm, preferred_element_type=rows.dtype, tiling=tiling, transpose_rhs=turned, interpret=interpret
    )
    y = _whole(product, "r d, e h d, e -> r h" if turned else "r d, e d h, e -> r h")(rows, kernel, _sizes(ends))
    if bias is None:
        return y
    own = _expert(jnp.arange(len(rows))[:, None], ends)
    return y + jnp.dot(own.astype(bias.dtype), bias, precision=lax.Precision.HIGHEST).astype(y.dtype)


def sums_of_products(rows: Array, gradient: Array, ends: Array, *, interpret: bool = False) -> tuple[Array, Array]:
    """Computes `rows^T gradient` (E, D, H) and the sum of `gradient` (E, H) over each expert's rows, in float32 or better."""
    dtype, exact = gradient.dtype, wide(gradient).dtype
    tiling = (TILE, _tile(rows.shape[1], rows.dtype), _tile(gradient.shape[1], dtype))
    summed = partial(_kernels().tgmm, preferred_element_type=dtype, tiling=tiling, interpret=interpret)
    to_kernel = _whole(summed, "d r, r h, e -> e d h")(rows.T, gradient, _sizes(ends))
    row = jnp.arange(len(rows))[:, None]
    own = _expert(row, ends).astype(dtype)
    known, highest = jnp.where(row < ends[-1], gradient, 0), lax.Precision.HIGHEST
    to_bias = jnp.dot(own.T, known, precision=highest, preferred_element_type=exact)
    return to_kernel, to_bias.astype(dtype)


def _whole(function: Callable[..., Array], axes: str) -> Callable[..., Array]:
    """If a compiler partitions the program, runs the function on whole arrays on each device, because kernels cannot be split.
    `vmap` runs the function once per item."""

    def of_arrays(left: Array, right: Array, sizes: Array) -> Array:
        return function(left, right, sizes)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        same = untyped.sharding.NamedSharding(mesh, untyped.sharding.PartitionSpec())
        return mesh, of_arrays, same, (same,) * len(arguments)

    split = cast(Any, custom_partitioning).custom_partitioning(of_arrays)
    split.def_partition(
        partition, sharding_rule=axes, need_replication_factors=tuple(dict.fromkeys(filter(str.isalpha, axes)))
    )
    return cast(Callable[..., Array], cast(Any, custom_batching).sequential_vmap(split))


def _kernels() -> Any:
    """Imports the kernels only when a kernel is traced, because few layers need the kernels."""
    return importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")


def _expert(row: Array, ends: Array) -> Array:
    """Returns booleans (R, E) that are true where a row belongs to an expert."""
    return (row < ends) & (row >= jnp.append(0, ends[:-1]))


def _sizes(ends: Array) -> Array:
    return jnp.diff(ends, prepend=0).astype(jnp.int32)


def _tile(width: int, dtype: Any) -> int:
    """The number of columns of a tile: at most 2 KiB per row and, if possible, a multiple of 128 that divides `width`."""
    most = 2048 // jnp.dtype(dtype).itemsize
    whole = [size for size in range(128, min(width, most) + 1, 128) if width % size == 0]
    return max(whole) if whole else min(width, most)
