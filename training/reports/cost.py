"""Computes or measures the cost of a model per image."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.models import counts
from moespec.models.families import Config as Model
from moespec.models.families import family, fewest_images
from moespec.training.compilation import compile_if, pays
from moespec.training.configuration.config import Config
from moespec.training.evaluation.metrics import make_forward
from moespec.training.objectives.table import forward_passes, training_flops

__all__ = ["aligned", "described", "milliseconds", "moe_of", "of_run", "scaled", "timed"]

REPEATS, SECONDS = 5, 0.3
"""Minimum number of timed forward passes, and their minimum total time in seconds."""


def milliseconds(B: Backend, model: Model, params: Any, **how: Any) -> float:
    """Returns the median of the times that `timed` measures with the same arguments."""
    return statistics.median(timed(B, model, params, **how))


def timed(
    B: Backend, model: Model, params: Any, *, batch: int, forward: Callable[[Any, Any], Any] | None = None
) -> list[float]:
    """Times several forward passes of `batch` images, without compilation, and returns the milliseconds per image for each pass.

    The times include the copy of the logits to the host. params: arrays of `B`. forward: a compiled `make_forward` function, if available.
    """
    random = np.random.default_rng(0)
    shape = (batch, model.image_size, model.image_size, model.channels)
    images = B.from_numpy(random.uniform(-1.0, 1.0, shape).astype(np.float32))
    forward = forward or compile_if(B, pays(B, REPEATS), make_forward(B, model))
    B.to_numpy(forward(params, images)[0])
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < SECONDS:
        start = time.perf_counter()
        B.to_numpy(forward(params, images)[0])
        times.append(time.perf_counter() - start)
    return [1e3 * seconds / batch for seconds in times]


def described(model: Model, *, batch: int | None = None) -> str:
    """Describes a model's parameters and operations. batch: images per batch; default: the smallest batch that fills the groups."""
    operations, size = sum(counts.flops(model, batch).values()), model.image_size
    parameters = f"{family(model).parameter_count(model):,} parameters"
    return f"{parameters}, {scaled(operations)} per image of {size} x {size} pixels"


def of_run(config: Config, model: Model, images: int, *, batch: int | None) -> str:
    """Describes the operations of training on `images` images, see `moespec.training.objectives.table.training_flops`."""
    total = training_flops(config, model, images, batch=batch)
    each = [
        f"{passes} forward passes per {'text' if tower.inputs == 'ids' else 'image'}"
        for tower, passes in forward_passes(config, model)
    ]
    return f"training on {images:,} images: {scaled(total)} ({', '.join(each)})"


def moe_of(model: Model) -> str:
    """Describes the MoE blocks of a model, with their routers and experts."""
    layers = family(model).moe_layers(model, fewest_images(model))
    blocks = ", ".join(dict.fromkeys(layer.name.partition("_")[0] for layer in layers))
    routers = " and ".join(dict.fromkeys(f"{layer.router} with {layer.settings.experts} experts" for layer in layers))
    return f"MoE blocks {blocks} (of 0 to {model.depth - 1}): {routers}" if layers else "no MoE blocks"


def scaled(operations: float) -> str:
    """Operations with a unit.

    >>> scaled(1.7273e21), scaled(35_119_378_432), scaled(4_905_000), scaled(640)
    ('1727.3 EFLOP', '35.1 GFLOP', '4.9 MFLOP', '0.6 kFLOP')
    """
    units = {1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
    size, unit = next((size, unit) for size, unit in units.items() if operations >= size or unit == "k")
    return f"{operations / size:.1f} {unit}FLOP"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Formats a table for a terminal: the first column is left-aligned, the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join([f"{{:{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    return "\n".join(form.format(*row).rstrip() for row in rows)
