"""What becomes of the pixels of a batch on the device, where they arrive as uint8, in a quarter of the bytes of float32."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.training.data.dataset import Dataset

__all__ = ["prepared"]

Array = Any
Scale = tuple[tuple[float, ...], tuple[float, ...]]


def prepared(
    B: Backend, dataset: Dataset, pixels: Array, weight: Array | None = None, neighbours: Array | None = None
) -> Array:
    """Pixels `(N, H, W, Ch)`, uint8 arrays of `B`, as what the model sees: mixed, if there is a `weight`, and normalised.

    factor (weight x_i + (1 - weight) x_(i-1)) - offset         with the scale of the data set

    neighbours: the x_(i-1), where `pixels` are not a whole batch.
    """
    images: Array = _function(B.name, dataset.scale)(pixels, weight, neighbours)
    return images


@functools.cache
def _function(backend: str, scale: Scale) -> Callable[[Array, Array | None, Array | None], Array]:
    B: Backend = importlib.import_module(f"moespec.backends.{backend}")

    def run(x: Array, weight: Array | None, neighbours: Array | None) -> Array:
        factor, offset = B.from_numpy([np.asarray(values, np.float32) for values in scale])
        if weight is not None:
            before = B.concatenate([x[-1:], x[:-1]], 0) if neighbours is None else neighbours
            x = weight * x + (1 - weight) * before
        return factor * x - offset

    # With torch four operations are soon done, and to compile them takes seconds.
    return run if backend == "torch" else B.compile(run)
