"""The GELU, the default activation of the experts."""

import numpy as np

from moespec.spec.checks import check_option
from moespec.spec.numerics import Array, Leading, normal_cdf
from moespec.spec.values import as_array

__all__ = ["gelu"]


def gelu(x: Leading, *, form: str = "tanh") -> Array:
    """Computes the Gaussian error linear unit `x Phi(x)`, exactly or approximately:

        erf:   x / 2 (1 + erf(x / sqrt(2)))
        tanh:  x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

    Args:
        x: any shape.
        form: "tanh" or "erf".

    Returns:
        The shape of `x`.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415).

    >>> round(float(gelu(1.0)), 10), round(float(gelu(1.0, form="erf")), 10)
    (0.8411919906, 0.8413447461)
    """
    check_option("form", form, ("tanh", "erf"))
    return activation(as_array("x", x, "..."), form=form)


def activation(x: Array, *, form: str) -> Array:
    """Computes `gelu` without checking the arguments."""
    if form == "erf":
        return x * normal_cdf(x)
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x)))
