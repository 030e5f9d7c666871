"""Computes the scale A of the tolerance `c * u * A`.

*Condition.* The condition scale of a result f with inputs x, w, ... is

    A = max(|f|, sum_i |x_i df/dx_i|, sum_i |w_i df/dw_i|, ...)

If each number of one input is rounded once, the result moves by at most about `u A`. A is never less than |f|, because
the result itself is rounded. For a matrix product, A is exactly `|x| @ |w|`, the same computation on absolute values.
For other functions, the complex step computes the derivatives, so A is exact. A is not a bound if a formula cancels
internally (a variance, or `1 + tanh(x)` for large x). The description of such a function defines the scale.

*Spread.* For gradients and deep models, exact derivatives would need one pass per input number. The spread scale is

    A = max(|f|, r),   r^2 = mean over probes v of |df along x v|^2,   v = +-1 for every number of every input

In expectation, r is `sqrt(sum_i (x_i df/dx_i)^2)`. The value r estimates how far independent roundings move the result
(Kenney and Laub 1994, small-sample condition estimation). Small entries of a gradient are differences of large terms. For a
gradient, r is therefore at least the root mean square of r over all entries (`pooled_spread`). Results of tanh are treated as inputs.

*Stability.* The stability is the largest relative change of the inputs that leaves a discrete result unchanged. For
choices inside an iteration, the stability is the tie margin.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.directions import derivatives, units
from moespec.conformance.author.inputs import signs

__all__ = ["condition", "pooled_spread", "round_scale", "spread", "stability"]

Arrays = dict[str, NDArray[Any]]
Function = Callable[[Arrays], Arrays]


def condition(function: Function, inputs: Arrays, results: Arrays) -> Arrays:
    """Return the condition scale of every float result. results: the value of `function(inputs)`."""
    results = _floats(results)
    scale = {name: np.abs(value) for name, value in results.items()}
    for name, array in inputs.items():
        if array.dtype.kind != "f":
            continue

        def stepped(step: NDArray[Any], name: str = name, array: NDArray[Any] = array) -> Arrays:
            return function({**inputs, name: array + step})

        moved = derivatives(stepped, units(array))
        scale |= {key: np.maximum(scale[key], np.abs(moved[key]).sum(axis=-1)) for key in scale.keys() & moved}
    return scale


def moved(inputs: Arrays, probe: int, step: float) -> Arrays:
    """Multiply every number of every float input by `1 + step` or `1 - step`, except the tables of a hash layer.

    The tables of a hash layer are stored among float parameters, but hold integers.
    """
    return {
        name: array
        if array.dtype.kind != "f" or name.endswith("tables")
        else array * (1 + step * signs(f"spread/{probe}/{name}", array.shape))
        for name, array in inputs.items()
    }


def spread(function: Function, inputs: Arrays, results: Arrays, *, probes: int = 16, pooled: bool = False) -> Arrays:
    """Return the spread scale of every float result. With `pooled`, r is at least the root mean square of r over the result.

    results: `function(inputs)`.
    """
    step = 1e-6
    results = _floats(results)
    squares = {name: np.zeros(value.shape) for name, value in results.items()}
    for probe in range(probes):
        for name, value in function(moved(inputs, probe, step)).items():
            if name in squares:
                squares[name] = squares[name] + ((value - results[name]) / step) ** 2 / probes
    if pooled:
        squares = {name: np.maximum(square, square.mean()) for name, square in squares.items()}
    return {name: np.maximum(np.abs(results[name]), np.sqrt(squares[name])) for name in results}


def pooled_spread(function: Function, inputs: Arrays, results: Arrays, *, probes: int = 2) -> Arrays:
    """Estimate the spread scale from a few probes, with r pooled over each result."""
    return spread(function, inputs, results, probes=probes, pooled=True)


def _floats(results: Arrays) -> Arrays:
    return {name: value for name, value in results.items() if value.dtype.kind == "f"}


def stability(function: Function, inputs: Arrays, *, probes: int = 16) -> float:
    """Return the largest relative change of all float inputs (1/4, 1/8, ...) that leaves the result unchanged, or 0 if none does."""
    expected = function(inputs)
    for exponent in range(2, 50):
        step = np.float64(2.0**-exponent)  # promotes float32 inputs to float64, so small steps are not rounded away
        results = (function(moved(inputs, probe, step)) for probe in range(probes))
        if all(np.array_equal(result[name], expected[name]) for result in results for name in expected):
            return step
    return 0.0


def round_scale(scale: NDArray[Any]) -> NDArray[np.float64]:
    """Round a scale up to three significant digits, the precision that vectors store."""
    rounded: NDArray[np.float64] = np.vectorize(lambda a: float(f"{1.006 * a:.2e}"), otypes=[np.float64])(scale)
    return rounded
