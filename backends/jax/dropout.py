"""Dropout."""

import jax.numpy as jnp
from jax import Array

from moespec.backends.jax.explicit import by_groups
from moespec.spec.algorithms.dropout import check_draws, threshold
from moespec.spec.checks import check_floating, check_rank

__all__ = ["dropout"]


@by_groups({"x": "group", "draws": "group"})
def dropout(x: Array, draws: Array, *, rate: float) -> Array:
    """x (...), draws (...) -> (...), in the dtype of x."""
    check_floating("x", x)
    check_rank("x", x, "...")
    check_floating("draws", draws)
    check_draws(draws, x)
    return jnp.where(draws >= threshold(rate), x / (1 - rate), jnp.zeros_like(x))
