"""Initial parameters of routers. The caller passes the generator that draws the random numbers."""

import numpy as np

from moespec.spec.numerics import Array

TRUNCATED_STD = 0.8796256610342398
"""Standard deviation of the standard normal truncated to [-2, 2]."""


def lecun_normal(generator: np.random.Generator, shape: tuple[int, ...], fan_in: int, *, scale: float = 1.0) -> Array:
    """Float32 draws from the normal distribution truncated at two standard deviations, scaled to variance `scale / fan_in`."""
    draws = generator.standard_normal(shape)
    outside = (draws < -2) | (draws > 2)
    while outside.any():
        draws[outside] = generator.standard_normal(int(outside.sum()))
        outside = (draws < -2) | (draws > 2)
    return (draws / (TRUNCATED_STD * np.sqrt(fan_in / scale))).astype(np.float32)


def uniform(generator: np.random.Generator, shape: tuple[int, ...], reach: float) -> Array:
    """Float32 draws from the uniform distribution between `-reach` and `reach`."""
    return generator.uniform(-reach, reach, shape).astype(np.float32)


def orthogonal(generator: np.random.Generator, shape: tuple[int, int], gain: float) -> Array:
    """A random float32 matrix with orthogonal columns of norm `gain`. If it has more columns than rows, the rows are orthogonal instead."""
    from scipy.linalg import qr  # a local import, because importing SciPy is slow

    rows, columns = shape
    basis, triangle = qr(generator.standard_normal((max(shape), min(shape))), mode="economic")
    basis = basis * np.where(np.diag(triangle) < 0, -1, 1)  # now all orthogonal matrices are equally likely
    return (gain * (basis if rows >= columns else basis.T)).astype(np.float32)
