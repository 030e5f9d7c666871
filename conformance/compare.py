"""Compare results: floats by `|got - want| <= c * u * A`, integers exactly, and decisions only if they are certified to be far from a tie.

`A` is the scale stored with each result (see `scale.py`). u is the unit roundoff of the dtype. For bfloat16 and
float16, results that must be float32 or better use the roundoff of float32 (`precision`). The fraction of the tolerance
that a result uses is its largest `|got - want| / (c * u * A)`. A result fails if this fraction exceeds 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.failure import Failure
from moespec.conformance.format import Value
from moespec.conformance.functions import function

__all__ = [
    *("ALL_DTYPES", "CONSTANTS", "DTYPES", "LARGE", "SHORT", "Dtype", "Outcome", "Verdict", "certified", "compare"),
    *("compared", "constant", "exact", "one_of", "place", "precision", "tolerance", "wrong"),
]


@dataclass(frozen=True)
class Dtype:
    """A dtype in which a target is checked, its unit roundoff u, and the error allowed on underflow.

    tiny: the smallest normal number, since some devices flush smaller numbers to 0; for float16, whose subnormals all
    devices support, the smallest subnormal. largest: the largest number. least: the minimum constant c of a comparison.

    c is at least 16 in float64, because float64 runs only test whether the algorithm is correct. The other constants were measured on
    moespec's backends. Of 26 correct implementations with another order of operations, 3 have errors of 4 to 12 u A in float64 (Sinkhorn on
    the plan's logarithm, a loss by counts, a projection by bisection), and none in float32. No wrong implementation that was tried has
    errors of 4 to 16 u A. Float32 arithmetic has errors of at least 2^20 u A. Tie margins and checks of committed vectors ignore `least`.
    """

    name: str
    roundoff: float
    tiny: float
    largest: float = math.inf
    least: float = 0.0


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float64", 2.0**-53, 2.0**-1022, least=16.0),
        Dtype("float32", 2.0**-24, 2.0**-126),
        Dtype("bfloat16", 2.0**-8, 2.0**-126),
    )
}
"""The vectors' dtypes. They test, in order: is the algorithm right, are the numerics right, is the target usable?"""

ALL_DTYPES = {**DTYPES, "float16": Dtype("float16", 2.0**-11, 2.0**-24, 65504.0)}
"""The vectors' dtypes and float16. Not all inputs are exact in float16 and bfloat16; see `exact`."""

SHORT = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""Accepted short names of dtypes."""

CONSTANTS: dict[str, tuple[float, str]] = {
    "direct": (4.0, "formulas evaluated once: some roundings, exp, log or tanh; at most 0.95 of it is used"),
    "sinkhorn": (8.0, "20 rounds of two logsumexp; at most 0.54 of it is used"),
    "transport": (128.0, "20 steps of a solver, each with sorted sums of differences; at most 0.41 of it is used"),
    "gradient": (16.0, "a derivative, through formulas that are evaluated once; at most 0.91 of it is used"),
    "iterated gradient": (32.0, "a derivative through iterations or a whole router; at most 0.38 of it is used"),
    "model": (16.0, "a model of two blocks, its scale from random probes; at most 0.58 of it is used"),
    "trajectory": (64.0, "20 training steps that round anew, their spread from two probes; at most 0.42 of it is used"),
    "drift": (4096.0, "scores of 20 training steps, relative: up to 1 310 measured in float32"),
}
"""Maps the name of each tolerance constant to c and its reason: what c covers, and the largest fraction of the tolerance
that the numpy, JAX and torch backends used on a CPU, op by op and compiled, in any dtype."""


LARGE = "large "
"""Prefix of constant names for sampled scales, which ignore the rounding errors of a sum's additions."""
SUMS = 128.0
"""Minimum c with a sampled scale in float32 and float64, where sums of up to 1536 terms round after each addition. The
largest c measured is 68, in float64, on the numpy, JAX and torch backends."""
ROUNDINGS = 8.0
"""Minimum c with a sampled scale in bfloat16 and float16, where sums are in float32. The largest c measured is 3.7, for a
torch layer that rounds after each operation."""


def constant(name: str, dtype: Dtype) -> float:
    """Returns the constant c with this name for results in a dtype."""
    c = CONSTANTS[name.removeprefix(LARGE)][0]
    if not name.startswith(LARGE):
        return c
    return max(c, SUMS if dtype.roundoff <= DTYPES["float32"].roundoff else ROUNDINGS)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison: whether the result passed, the fraction of the tolerance used, and the difference."""

    passed: bool
    fraction: float = 0.0
    message: str = ""


def precision(call: str, result: str, dtype: Dtype) -> Dtype:
    """Returns the dtype whose roundoff bounds the errors of a result of the function `call`.

    Returns `dtype`, or float32 if `dtype` is bfloat16 or float16 and the result is not rounded to `dtype`.
    """
    rounded = dtype.roundoff <= DTYPES["float32"].roundoff or function(call).output(result).rounded
    return dtype if rounded else DTYPES["float32"]


def exact(array: NDArray[Any], dtype: Dtype) -> bool:
    """Whether a dtype represents an input exactly. float32 and float64 represent every input of the vectors exactly."""
    if dtype.roundoff <= DTYPES["float32"].roundoff or array.dtype.kind != "f":
        return True
    wide = np.ascontiguousarray(array, np.float32)
    if dtype.name == "bfloat16":  # bfloat16 is the upper half of float32
        return not (wide.view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        return bool(np.array_equal(wide.astype(np.float16).astype(np.float32), wide, equal_nan=True))


def tolerance(value: Value, dtype: Dtype) -> NDArray[np.float64]:
    """Returns the bound `c * u * A` for each entry of a float result, plus the error that the dtype allows on underflow."""
    scale = np.abs(value.array) if isinstance(value.scale, str) else np.asarray(value.scale, np.float64)
    return max(constant(value.constant, dtype), dtype.least) * dtype.roundoff * scale + dtype.tiny


def wrong(value: Value, got: NDArray[Any], dtype: Dtype) -> NDArray[np.bool_]:
    """Returns the mask of wrong entries in a result that has the right shape."""
    if value.kind != "float":
        return np.asarray(got != value.array)
    with np.errstate(invalid="ignore"):
        return np.asarray(~(np.abs(got.astype(np.float64) - value.array) <= tolerance(value, dtype)))


def compare(value: Value, got: Any, dtype: Dtype) -> Verdict:
    """Compare a target's result with the expected one."""
    got = np.asarray(got)
    if got.shape != value.array.shape:
        return Verdict(False, math.inf, f"shape {got.shape}, expected {value.array.shape}")
    if value.kind != "float":
        kinds = "iu" if value.kind == "int" else "b"
        if got.dtype.kind not in kinds:
            return Verdict(False, math.inf, f"dtype {got.dtype}, expected {'integers' if kinds == 'iu' else 'bool'}")
        different = got != value.array
        if not different.any():
            return Verdict(True)
        index = np.unravel_index(int(different.argmax()), different.shape)
        found = f"at {place(value.axes, index)} got {got[index]}, expected {value.array[index]}"
        return Verdict(False, math.inf, f"{np.count_nonzero(different)} of {got.size} entries differ; {found}")
    if got.dtype.kind != "f":
        return Verdict(False, math.inf, f"dtype {got.dtype}, expected floats")
    got = got.astype(np.float64)
    if not np.isfinite(got).all():
        return Verdict(False, math.inf, f"{np.count_nonzero(~np.isfinite(got))} of {got.size} entries are not finite")
    error, bound = np.abs(got - value.array), tolerance(value, dtype)
    fraction = np.divide(error, bound, out=np.where(error > 0, math.inf, 0.0), where=bound > 0)
    worst = float(fraction.max(initial=0.0))
    if worst <= 1.0:
        return Verdict(True, worst)
    index = np.unravel_index(int(fraction.argmax()), fraction.shape)
    found = f"at {place(value.axes, index)} got {got[index]:.17g}, expected {value.array[index]:.17g}"
    found += f": error {error[index]:.3g}, allowed {bound[index]:.3g}"
    return Verdict(False, worst, f"{np.count_nonzero(fraction > 1)} of {fraction.size} entries differ; {found}")


_ONE_OF = {"capacity": "slot", "width": "feature", "hidden": "hidden unit", "classes": "class", "hashes": "hash"}


def place(axes: Sequence[str], index: tuple[Any, ...]) -> str:
    """Describes an entry's position, such as "group 0, expert 1, slot 7". If axes have no names, returns only the indices."""
    if not index or len(axes) != len(index) or any(axis.startswith("axis") for axis in axes):
        return "[" + ", ".join(str(int(i)) for i in index) + "]"
    return ", ".join(f"{one_of(axis)} {int(i)}" for axis, i in zip(axes, index, strict=True))


def one_of(axis: str) -> str:
    """Returns the word for one position along an axis, such as "slot" for `capacity` and "expert" for `experts`."""
    return _ONE_OF.get(axis, axis.removesuffix("s"))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one stage or one of its results. trace: the lines of code that raised an exception, if any."""

    stage: str
    state: str
    fraction: float = 0.0
    message: str = ""
    trace: str = ""


def compared(
    stage: str, expected: dict[str, Value], found: Any, dtype: Dtype, sure: bool, call: str = ""
) -> list[Outcome]:
    """Returns the outcome of each result of a stage. If `sure` is false, a choice may be tied, so results are inconclusive.

    call: the name that the stage calls; empty for gradients, which have the dtype of the differentiated input.
    """
    if isinstance(found, Failure):
        return [Outcome(stage, found.state, found.fraction, found.text, found.trace)]
    outcomes = []
    slots_first = sorted(expected.items(), key=lambda item: "/" in item[0])  # slots explain metrics
    for name, value in slots_first:
        label = f"{stage}/{name}"
        if name not in found:
            outcomes.append(Outcome(label, "fail", math.inf, "missing"))
        elif not sure:
            outcomes.append(Outcome(label, "inconclusive", 0.0, f"a choice is too close to a tie for {dtype.name}"))
        elif value.kind == "float" and np.abs(value.array).max(initial=0.0) > dtype.largest:
            outcomes.append(Outcome(label, "inconclusive", 0.0, f"a result is too large for {dtype.name}"))
        else:
            verdict = compare(value, found[name], precision(call, name, dtype) if call else dtype)
            outcomes.append(Outcome(label, "pass" if verdict.passed else "fail", verdict.fraction, verdict.message))
    for name in sorted(found.keys() - expected.keys()):
        outcomes.append(Outcome(f"{stage}/{name}", "fail", math.inf, "unexpected result"))
    return outcomes


def certified(decision: dict[str, Any] | None, dtype: Dtype) -> bool:
    """Whether all choices of a stage are so far from a tie that rounding errors of the dtype cannot change a choice.

    A margin of None marks a choice among exact inputs of the case, whose ties are intended. The required margin in float16
    is the float32 margin or, if larger, the bfloat16 margin times the ratio of the float16 roundoff to the bfloat16 roundoff.
    """
    if decision is None or decision["margin"] is None:
        return True
    needed = decision["needed"]
    if dtype.name == "float16":
        finer = dtype.roundoff / DTYPES["bfloat16"].roundoff
        return bool(decision["margin"] > max(needed["float32"], needed["bfloat16"] * finer))
    return bool(decision["margin"] > needed[dtype.name])
