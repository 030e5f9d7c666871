"""Exports a function of images as StableHLO: one artifact for CPU, CUDA and TPU, with a variable batch size."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, export

from moespec.backends.jax.megablox import left_out

__all__ = ["PLATFORMS", "stablehlo_bytes"]

PLATFORMS = ("cpu", "cuda", "tpu")


def stablehlo_bytes(function: Callable[[Array], Array], image: tuple[int, ...], *, multiple: int = 1) -> bytes:
    """Exports a function of images (N, *image) float32 -> (N, ...) for all `PLATFORMS`. `jax.export.deserialize` reads the bytes.

    N is any multiple of `multiple`. The program applies `function` to `multiple` images at a time. The
    program therefore fixes `multiple`, but not the batch size.
    """

    def mapped(images: Array) -> Array:
        outputs = jax.vmap(function)(images.reshape(-1, multiple, *image))
        return outputs.reshape(-1, *outputs.shape[2:])

    (groups,) = export.symbolic_shape("groups")
    images = jax.ShapeDtypeStruct((groups * multiple, *image), jnp.float32)  # type: ignore[no-untyped-call]
    with left_out():
        return bytes(export.export(jax.jit(mapped), platforms=PLATFORMS)(images).serialize())
