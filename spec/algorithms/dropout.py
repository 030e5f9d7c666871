"""Dropout, and stochastic depth, which drops the residual branches of individual examples. The caller passes the random numbers.

| here | Srivastava et al. 2014 | Huang et al. 2016 (arXiv 1603.09382) |
|---|---|---|
| `rate` | 1 - p | 1 - p_l |
| `draws` | one per unit | one per residual branch and example |

In block l of L, counted from 0, residual branches are dropped at the rate `rate l / (L - 1)` (see `branch_rate`).

Ambiguity ledger

DO-1: Are kept units and kept branches divided by the probability of keeping them?
    Reading: yes, both units and branches are divided in training. At evaluation, both stay unchanged.
        By: google/flax, flax/linen/stochastic.py, Dropout; huggingface/pytorch-image-models, timm/layers/drop.py, drop_path.
    Alternative b: no. In training, a branch is either 0 or unchanged. At evaluation, a branch is unchanged.
        By: google-research/big_vision, big_vision/models/mlp_mixer.py, _stoch_depth_mask.
    Alternative c: no. At evaluation, units or branches are instead multiplied by the probability of keeping them.
        By: Stochastic depth (arXiv 1603.09382), eq. (5).
DO-2: How does the stochastic depth rate increase over the blocks?
    Reading: the rate increases linearly from 0 for the first block to `rate` for the last block.
        By: google-research/big_vision, big_vision/models/mlp_mixer.py, MlpMixer; huggingface/pytorch-image-models,
        timm/layers/drop.py, calculate_drop_path_rates.
    Alternative b: the rate increases linearly from `rate / L` for the first block to `rate` for the last block.
        By: Stochastic depth (arXiv 1603.09382), eq. (4).
"""

import math
from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.threefry import BITS
from moespec.spec.checks import check_at_least, check_non_negative, shape_of
from moespec.spec.errors import ConfigError, ContractError, ShapeError
from moespec.spec.numerics import Array, Leading
from moespec.spec.values import as_array

__all__ = ["branch_rate", "dropout"]

ALGORITHMS = (
    Algorithm("dropout", "Srivastava et al. 2014; Huang et al. 2016 (arXiv 1603.09382)", 1, ("branch_rate", "dropout")),
)


def dropout(x: Leading, draws: Leading, *, rate: float) -> Array:
    """Sets an entry to 0 if its draw is below the rate, and divides the other entries by `1 - rate`.

        y = x / (1 - rate)    if draw >= rate,  else 0

    Draws are multiples of 2^-24. Before the comparison, the rate is rounded up to a multiple of 2^-24, so every dtype keeps
    the same entries. With one draw per example, the function computes stochastic depth.

    Args:
        x: (...).
        draws: (...), uniform on [0, 1), with as many axes as `x`. Along axes where `draws` has length 1, entries of `x` share a draw.
        rate: the probability of dropping an entry, from 0 to less than 1.

    Returns:
        The shape of `x`.

    Source: Srivastava et al. 2014, section 4; the division: google/flax, flax/linen/stochastic.py, Dropout.

    >>> dropout([[1.0, 2.0, 3.0]], [[0.125, 0.25, 0.75]], rate=0.25).tolist()
    [[0.0, 2.6666666666666665, 4.0]]
    >>> dropout([[1.0, 2.0], [3.0, 4.0]], [[0.75], [0.125]], rate=0.5).tolist()  # branches of two examples
    [[2.0, 4.0], [0.0, 0.0]]
    """
    x, draws = as_array("x", x, "..."), as_array("draws", draws, "...").real
    check_draws(draws, x)
    if not ((draws >= 0) & (draws < 1)).all():
        raise ContractError(f"draws: expected numbers in [0, 1), got {draws.tolist()}")
    return np.where(draws >= threshold(rate), x / (1.0 - rate), 0.0)


def branch_rate(rate: float, *, block: int, depth: int) -> float:
    """Returns the stochastic depth rate of one block: `rate * block / (depth - 1)`, or 0 in a model with one block.

    Args:
        rate: rate of the last block, from 0 to less than 1.
        block: the index of the block, from 0 to `depth - 1`.
        depth: number of blocks in the model.

    Returns:
        A number from 0 to `rate`.

    Source: google-research/big_vision, big_vision/models/mlp_mixer.py, MlpMixer.

    >>> [branch_rate(0.5, block=block, depth=3) for block in range(3)]
    [0.0, 0.25, 0.5]
    """
    check_rate("rate", rate)
    depth = check_at_least("depth", depth, 1)
    if check_at_least("block", block, 0) >= depth:
        raise ConfigError(f"block: expected less than depth={depth}, got {block}")
    return rate * block / max(depth - 1, 1)


def check_rate(name: str, value: float) -> float:
    """Returns `value` as a float. Raises `ConfigError` unless `value` is at least 0 and less than 1."""
    if check_non_negative(name, value) >= 1:
        raise ConfigError(f"{name}: expected a number in [0, 1), got {value!r}")
    return float(value)


def threshold(rate: float) -> float:
    """Returns the smallest draw that keeps an entry: the rate rounded up to a multiple of 2^-24. Raises `ConfigError` for invalid rates."""
    return math.ceil(check_rate("rate", rate) * 2**BITS) / 2**BITS


def check_draws(draws: Any, x: Any) -> None:
    """Raises `ShapeError` unless `draws` has as many axes as `x`, and every axis of `draws` has length 1 or the same length as in `x`."""
    shape, wanted = shape_of(draws), shape_of(x)
    if len(shape) != len(wanted) or any(size not in (1, full) for size, full in zip(shape, wanted, strict=True)):
        raise ShapeError(f"draws: expected the shape of x, {wanted}, in which any axis may have length 1, got {shape}")
