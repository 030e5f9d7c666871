"""Draws the random numbers of a training step on the device of the model: router noise, dropout and stochastic depth.

Each random number is a function of the seed, the step, the use in the model (`stream`), the image and token in the batch, and the expert
or the entry of a token: see `moespec.spec.threefry`. A random number does not depend on how a batch is split or, up to rounding, on the
backend. For a batch of N images, the functions take an array `(N, 4)` of integers from `of_step`: for each image, the low and high word
of the seed, the step, and the image's index in the batch.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.spec.algorithms.dropout import branch_rate
from moespec.spec.checks import check_integers, check_size, dtype_name
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Noise

__all__ = ["Draws", "draws_of", "gating_noise", "of_step", "takes_draws"]

Array = Any

GATING, DROPOUT, DEPTH = range(3)
"""The purposes of random numbers: router noise, dropout and stochastic depth."""
USES = 2**20
"""The number of a stream is `USES * purpose + index`, where `index` is the number of the layer or of another use."""


def of_step(images: int, *, seed: int, step: int) -> NDArray[np.int32]:
    """Returns the integers `(images, 4)` from which the random numbers of one step are computed."""
    words = np.array([seed % 2**32, seed >> 32, step, 0], np.int64)
    rows = np.tile(words, (images, 1))
    rows[:, 3] = np.arange(images)
    return rows.astype(np.uint32).view(np.int32)


def gating_noise(B: Backend, wanted: list[Noise], random: Array, images: Array) -> list[Array] | None:
    """Returns the noise of each MoE layer in `wanted`, drawn from the integers `random` `(N, 4)`, or None if no router uses noise.

    wanted: the result of the model's `moe_noise`, with shapes `(G, T)` or `(G, T, entries)`.
    """
    return [_noise(B, noise, random, images, GATING * USES + layer) for layer, noise in enumerate(wanted)] or None


def _noise(B: Backend, noise: Noise, random: Array, images: Array, stream: int) -> Array:
    groups, tokens, *entries = noise.shape
    rows, columns = groups * tokens, entries[0] if entries else 1
    if noise.interval is None:
        pairs = _uniform(B, random, images, stream, rows, columns + columns % 2).reshape((rows, -1, 2))
        return B.box_muller(pairs).reshape((rows, -1))[:, :columns].reshape(noise.shape)
    low, high = noise.interval
    return (low + (high - low) * _uniform(B, random, images, stream, rows, columns)).reshape(noise.shape)


def _uniform(B: Backend, random: Array, like: Array, stream: int, rows: int, columns: int) -> Array:
    """Draws uniform numbers `(rows, columns)`, with an equal number of rows per image: float64 if `like` is float64, otherwise float32."""
    images = random.shape[0]
    if rows % images:
        raise ShapeError(f"random: {rows} rows cannot be split into {images} images")
    origin = B.concatenate([random[0, :3], random[0, 3:] * (rows // images)], 0)
    uniform = B.unit_interval(B.random_words(origin, stream=stream, rows=rows, columns=columns))
    return B.cast(uniform, "float64" if dtype_name(like) in ("float64", "complex128") else "float32")


@dataclass(frozen=True)
class Draws:
    """Applies dropout and stochastic depth in one forward pass of a model with two residual branches per block.

    random: integers `(N, 4)` from `of_step`, or None without dropout. branches: random numbers for stochastic depth, `(N, 2 depth)`, or
    None. dropout, stochastic_depth: the rates of dropout and stochastic depth. depth: the number of blocks.
    """

    B: Backend
    random: Array | None = None
    branches: Array | None = None
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    depth: int = 1

    def units(self, x: Array, number: int) -> Array:
        """Applies dropout to the entries of `x` `(N, ..., entries)`. number: the index of the dropout layer in the model."""
        if self.random is None or not self.dropout:
            return x
        rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
        drawn = _uniform(self.B, self.random, x, DROPOUT * USES + number, rows, columns)
        return self.B.dropout(x, drawn.reshape(x.shape), rate=self.dropout)

    def branch(self, x: Array, number: int) -> Array:
        """Applies stochastic depth to the residual branch `x` `(N, ...)`. number: the index of the branch; each block has two branches."""
        rate = branch_rate(self.stochastic_depth, block=number // 2, depth=self.depth)
        if self.branches is None or not rate:
            return x
        one = self.branches[:, number].reshape((-1, *[1] * (len(x.shape) - 1)))
        return self.B.dropout(x, one, rate=rate)


def draws_of(
    B: Backend, config: Any, random: Array | None, images: Array, *, train: bool, like: Array | None = None
) -> Draws:
    """Returns the `Draws` of a model whose configuration has the fields `depth`, `stochastic_depth` and optionally `dropout`.
    At evaluation, the `Draws` drop nothing.

    like: an array with the dtype of the parameters, by default `images`. For text ids, which are integers, pass `like`.

    Raises ConfigError if training with dropout or stochastic depth lacks `random`; ShapeError or DtypeError unless it is `(N, 4)` integers.
    """
    if not train or not takes_draws(config):
        return Draws(B, depth=config.depth)
    dropout = getattr(config, "dropout", 0.0)
    if random is None:
        raise ConfigError(
            f"random=None: to train with dropout={dropout!r} and "
            f"stochastic_depth={config.stochastic_depth!r}, pass the integers from moespec.models.random_keys.of_step"
        )
    check_integers("random", random, "images words")
    check_size("random", random, 0, images.shape[0], "the images")
    check_size("random", random, 1, 4, "two words of a seed, a step and the number of an image")
    size = images.shape[0], 2 * config.depth
    like = images if like is None else like
    branches = _uniform(B, random, like, DEPTH * USES, *size) if config.stochastic_depth else None
    return Draws(B, random, branches, dropout, config.stochastic_depth, config.depth)


def takes_draws(config: Any) -> bool:
    """Returns True if a model uses dropout or stochastic depth in training."""
    return bool(getattr(config, "dropout", 0.0) or getattr(config, "stochastic_depth", 0.0))
