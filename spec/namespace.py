"""The array namespace of the specification, for user-defined routers that need more than the functions of `moespec.spec`.

Each function has the same meaning as in `moespec.backends.common.namespace` and supports the complex step (see `numerics`).
"""

from typing import Any

import numpy as np

from moespec.spec.numerics import logsumexp as _logsumexp
from moespec.spec.numerics import sigmoid, softmax, softplus, stop_gradient  # noqa: F401 (part of the namespace)

cos, exp, log, sin, sqrt, square, tanh, where = np.cos, np.exp, np.log, np.sin, np.sqrt, np.square, np.tanh, np.where
cumsum, mean, sum, zeros_like = np.cumsum, np.mean, np.sum, np.zeros_like
broadcast_to, concatenate, stack, swapaxes = np.broadcast_to, np.concatenate, np.stack, np.swapaxes


def promote(x: Any) -> Any:
    """`x` in float64."""
    return np.asarray(x, np.result_type(x, np.float64))


def maximum(x: Any, least: float) -> Any:
    """`max(x, least)`, elementwise."""
    return np.where(x.real < least, least, x)


def clip(x: Any, low: float, high: float) -> Any:
    """Limits `x` to the range from `low` to `high`."""
    return np.where(x.real > high, high, maximum(x, low))


def abs(x: Any) -> Any:
    """The absolute value of `x`."""
    return np.where(x.real < 0, -x, x)


def sign(x: Any) -> Any:
    """The sign of `x`: -1, 0 or 1."""
    return 1.0 * (x.real > 0) - (x.real < 0)


def log_softmax(x: Any, axis: int) -> Any:
    """The logarithm of the softmax."""
    return x - np.expand_dims(_logsumexp(x, axis), axis)
