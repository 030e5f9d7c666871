"""Numerical functions that support the complex step.

The specification computes derivatives by the complex step. The derivative of an analytic function along `v` is the imaginary
part of its value at `x + 1e-30i v`, divided by 1e-30. Unlike finite differences, the complex step has no cancellation errors. Code
must follow three rules: branch on the real part, never conjugate, and never take a modulus. The functions in this module follow
these rules, and a lint check rejects unsafe NumPy functions in the package.
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import FLOATING, check_rank, dtype_name
from moespec.spec.errors import DtypeError
from moespec.spec.values import even

__all__ = ["mean", "stop_gradient"]

Array = NDArray[Any]
Shared = Annotated[ArrayLike, "shared by the groups"]
"""The type of an argument that all groups share, such as a kernel. In a backend, this argument has no groups axis."""
Leading = Annotated[ArrayLike, "any leading axes"]
"""The type of an argument that may have any number of leading axes. A groups axis therefore needs no special case."""
Axis = int | tuple[int, ...]

FAR = 40.0
"""Number of standard deviations beyond which, in float64, `normal_cdf` is 0 or 1 and the normal density is 0."""
SMALLEST_SCALE = 2.0**-63
"""The smallest scale whose square is not subnormal in float32."""


def stop_gradient(x: Leading) -> Array:
    """`x` as a constant: the same values, without a derivative.

    Args:
        x: an array of any shape.

    Returns:
        The real part of `x`, for which the complex step gives no derivative.

    Raises:
        ShapeError: `x` is a nested list with rows of different lengths.

    >>> stop_gradient(np.array([2.0 + 1e-30j])).tolist()
    [2.0]
    """
    return even("x", x).real


def mean(x: ArrayLike) -> Array:
    """The mean of all entries of `x`.

    Args:
        x: an array of any shape, with at least one entry.

    Returns:
        A scalar.

    Raises:
        ShapeError: `x` is empty, or a nested list with rows of different lengths.
        DtypeError: `x` does not hold numbers.

    >>> float(mean([[1.0, 2.0], [3.0, 6.0]]))
    3.0
    """
    array = even("x", x)
    check_rank("x", array, "...")
    if array.dtype.kind not in "biufc" and dtype_name(array) not in FLOATING:
        raise DtypeError(f"x: expected numbers, got {dtype_name(array)}")
    return np.asanyarray(array.mean())


def stable_order(values: Array, axis: int = -1) -> NDArray[np.intp]:
    """Indices that sort `values` in descending order. Among equal values, the lower index comes first."""
    return np.argsort(-values.real, axis=axis, kind="stable")


def positive_part(x: Array) -> Array:
    """`max(x, 0)`, elementwise, with derivative 0 at 0."""
    return np.where(x.real > 0, x, 0.0)


def softmax(x: Array, axis: Axis = -1) -> Array:
    """`exp(x) / sum(exp(x))` along `axis`, without overflow."""
    exponentials = np.exp(x - np.max(x.real, axis=axis, keepdims=True))
    return exponentials / np.sum(exponentials, axis=axis, keepdims=True)


def logsumexp(x: Array, axis: int = -1) -> Array:
    """`log(sum(exp(x)))` along `axis`, without overflow."""
    peak = np.max(x.real, axis=axis, keepdims=True)
    return np.log(np.sum(np.exp(x - peak), axis=axis)) + np.squeeze(peak, axis=axis)


def softplus(x: Array) -> Array:
    """`log(1 + exp(x))` without overflow."""
    small = np.exp(np.where(x.real > 0, -x, x))
    # NumPy's complex log1p rounds 1 + `small`, so use the real log1p and add the derivative separately.
    return positive_part(x) + (np.log1p(small.real) + (small - small.real) / (1.0 + small.real))


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))` without overflow."""
    small = np.exp(np.where(x.real > 0, -x, x))
    return np.where(x.real > 0, 1.0, small) / (1.0 + small)


def normal_cdf(z: Array) -> Array:
    """Distribution function of the standard normal, `(1 + erf(z / sqrt(2))) / 2`."""
    from scipy.special import erf  # a local import, because importing SciPy is slow

    return 0.5 * (1.0 + erf(z / np.sqrt(2.0)))


def z_score(deviation: Array, scale: Array) -> Array:
    """`deviation / scale` for `normal_cdf`, with a finite derivative for any scale of at least 0.

    The derivative is 0 where the quotient is at least `FAR` in absolute value (`normal_cdf` is then 0 or 1) and where the scale is below
    `SMALLEST_SCALE`. Without this rule, the derivative could overflow, and infinity times a density of 0 is NaN.
    """
    value, least = deviation.real, FAR * scale.real
    is_far = (value >= least) | (-value >= least)  # also True for a scale of 0
    end = np.where(value > 0, FAR, np.where(value < 0, -FAR, 0.0))
    constant = np.where(is_far, end, value / np.where(is_far, 1.0, scale.real))
    # Replace the scale before the division, because a NaN in the derivative of a discarded quotient would remain.
    is_constant = is_far | (scale.real < SMALLEST_SCALE)
    return np.where(is_constant, constant, deviation / np.where(is_constant, 1.0, scale))


def variance(x: Array, axis: int = -1) -> Array:
    """Population variance: the mean squared deviation (divided by n, not n - 1), without conjugation."""
    deviation = x - np.mean(x, axis=axis, keepdims=True)
    return np.mean(deviation * deviation, axis=axis)


def normalize_l2(x: Array, axis: int, *, form: str, epsilon: float = 1e-6) -> Array:
    """`x` divided by its Euclidean norm along `axis`, in one of three forms.

    `paper`: `x / (norm + epsilon)`; `rsqrt`: `x / sqrt(norm**2 + epsilon)`; `clamped`: `x / max(norm, epsilon)`. All
    forms map 0 to 0. For the derivative, a norm is a constant if it is 0 (in `paper`) or below
    epsilon (in `clamped`). For these vectors, the derivative is therefore the derivative of `x / epsilon`, never NaN.
    """
    squares = np.sum(x * x, axis=axis, keepdims=True)
    if form == "rsqrt":
        return x / np.sqrt(squares + epsilon)
    is_zero = np.sum(x.real * x.real, axis=axis, keepdims=True) == 0
    norm = np.where(is_zero, 0.0, np.sqrt(np.where(is_zero, 1.0, squares)))
    if form == "clamped":
        return x / np.where(norm.real < epsilon, epsilon, norm)
    return x / (norm + epsilon)
