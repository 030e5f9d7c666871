"""The smooth step of DSelect-k, which maps a real number to a value from 0 to 1, a relaxed bit of an expert's code."""

import numpy as np

from moespec.spec.checks import check_positive
from moespec.spec.numerics import Array, Leading
from moespec.spec.values import as_array

__all__ = ["smooth_step"]


def smooth_step(z: Leading, *, gamma: float = 1.0) -> Array:
    """Computes the cubic that rises from 0 at `-gamma / 2` to 1 at `gamma / 2` with a continuous derivative:

        S(z) = -2 z^3 / gamma^3 + 3 z / (2 gamma) + 1/2    for |z| < gamma / 2

    S(z) is 0 for `z <= -gamma / 2` and 1 for `z >= gamma / 2`. The step satisfies `1 - S(z) = S(-z)`. The code uses
    `S = t^2 (3 - 2 t)` with `t = z / gamma + 1/2`. This form is never negative and avoids cancellation if S is small.

    Args:
        z: an array of any shape.
        gamma: the width of the step, greater than 0.

    Returns:
        An array with the shape of `z`.

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py, SmoothStep.

    >>> smooth_step([-0.5, -0.3, 0.0, 0.25, 0.6]).round(12).tolist()
    [0.0, 0.104, 0.5, 0.84375, 1.0]
    """
    return step(as_array("z", z, "..."), check_positive("gamma", gamma))


def step(z: Array, gamma: float) -> Array:
    """Computes `smooth_step` without checking the arguments."""
    t = z / gamma + 0.5
    return np.where(t.real <= 0, 0.0, np.where(t.real >= 1, 1.0, t * t * (3.0 - 2.0 * t)))
