"""Find relations between a wrong result and the expected result, and report only relations that hold.

A relation holds if the result is within a few tolerances of the value that the relation predicts, and at least twice as far from the
expected value. Any two scalars have a ratio, so a ratio of scalars is reported only if several cases share it or `_is_plain` holds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.compare import DTYPES, Dtype, constant, one_of, tolerance, wrong
from moespec.conformance.format import Case, Tensor, Value

__all__ = ["Wrong", "error_size", "in_other_places", "quantities", "relations", "rounded", "shared", "short", "where"]

Array = NDArray[Any]
SLACK = 4.0
"""Maximum distance, in tolerances, between a result and the values that a relation predicts."""
CHANCE = 0.05
"""Wrong entries are attributed to a location only if the probability that they all lie there by chance is smaller than this."""
SPREAD = 64.0
"""Errors are attributed to a number format only if the largest error is less than this multiple of the median error."""
NEAR = 1e-3
"""A factor this close to 1 is less informative than the size of the error."""
FORMATS = {"bfloat16": 8, "float16 or TF32": 11, "float32": 24}
"""Significand bits by format."""

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "the square root of the expected value": np.sqrt,
    "the square of the expected value": np.square,
    "the inverse of the expected value": np.reciprocal,
    "the logarithm of the expected value": np.log,
    "the exponential of the expected value": np.exp,
    "1 minus the expected value": lambda want: 1 - want,
}
"""Functions that may map the expected result to the wrong result."""
WITH_ANOTHER: dict[str, Callable[[Array, Array], Array]] = {
    "it is the same as {}": lambda want, other: other,
    "{} is added to the expected value": np.add,
    "{} is subtracted from the expected value": np.subtract,
    "it is the expected value times {}": np.multiply,
    "it is the expected value divided by {}": np.divide,
}
"""Functions that may map the expected result and another array to the wrong result."""
NUMBERS: dict[str, Callable[[float], float]] = {
    **{"{}": lambda x: x, "1/{}": lambda x: 1 / x, "{}^2": lambda x: x * x, "1/{}^2": lambda x: 1 / (x * x)},
    **{"sqrt({})": lambda x: abs(x) ** 0.5, "1/sqrt({})": lambda x: abs(x) ** -0.5},
    **{"ln({})": lambda x: math.log(abs(x)), "exp({})": lambda x: math.exp(min(x, 99))},
    **{"({0} - 1)/{0}": lambda x: (x - 1) / x, "{0}/({0} - 1)": lambda x: x / (x - 1) if x != 1 else 1},
    **{"sqrt(({0} - 1)/{0})": lambda x: abs((x - 1) / x) ** 0.5, "pi": lambda x: math.pi},
    **{"ln 2": lambda x: math.log(2), "1/ln 2": lambda x: 1 / math.log(2), "1/(ln 2)^2": lambda x: math.log(2) ** -2},
}
"""Expressions that may explain a number, simplest first: constants, and functions of one size or option of a case."""
OF_TWO: dict[str, Callable[[float, float], float]] = {
    **{"{}*{}": lambda x, y: x * y, "{}/{}": lambda x, y: x / y, "{1}/{0}": lambda x, y: y / x},
    **{"1/({}*{})": lambda x, y: 1 / (x * y)},
}
"""Expressions of two sizes or options that may explain a number."""


@dataclass(frozen=True)
class Wrong:
    """A wrong result, with expected and computed values. dtype: the dtype whose roundoff bounds the errors of the result."""

    case: Case
    name: str
    value: Value
    got: Array
    dtype: Dtype

    @property
    def want(self) -> Array:
        """The expected values."""
        return self.value.array

    @property
    def differs(self) -> Array:
        """The mask of wrong entries."""
        return wrong(self.value, self.got, self.dtype)

    @property
    def unit(self) -> float:
        """The tolerance of a number whose scale is 1."""
        return max(constant(self.value.constant, self.dtype), self.dtype.least) * self.dtype.roundoff

    def fits(self, guess: Any, at: Any = ...) -> bool:
        """Whether entries are within tolerances of a guess and at least twice (8 times in coarse dtypes) as far from the expected ones."""
        got, want = self.got[at], self.want[at]
        bound = np.broadcast_to(tolerance(self.value, self.dtype), self.got.shape)[at]
        with np.errstate(all="ignore"):
            allowed = SLACK * (bound + self.unit * np.abs(guess))
            away, off = (np.max(np.abs(got - each) / allowed, initial=0.0) for each in (guess, want))
        return bool(away <= min(1.0, off / (2 if self.dtype.roundoff <= DTYPES["float32"].roundoff else 8)))

    def factor(self, at: Any = ...) -> float:
        """Returns the common factor between expected and computed entries, or NaN if no factor fits or all expected entries are 0."""
        got, want = self.got[at], self.want[at]
        with np.errstate(all="ignore"):
            times = float((got * want).sum() / (want**2).sum())
        return times if math.isfinite(times) and self.fits(times * want, at) else math.nan

    def summand(self, at: Any = ...) -> float:
        """Returns the common difference between computed and expected entries, or NaN if the differences vary."""
        with np.errstate(all="ignore"):
            added = float(np.median(self.got[at] - self.want[at]))
        return added if math.isfinite(added) and self.fits(self.want[at] + added, at) else math.nan


def quantities(case: Case) -> dict[str, float]:
    """Returns the nonzero sizes, numeric options and scalar inputs of a case by name."""
    outputs = (value for stage in case.stages for value in stage.outputs.values())
    arrays: list[Tensor | Value] = [*case.inputs.values(), *outputs]
    found: dict[str, Any] = {axis: n for each in arrays for axis, n in zip(each.axes, each.array.shape, strict=False)}
    found |= {name: each.array.item() for name, each in case.inputs.items() if each.array.size == 1}
    for stage in case.stages:
        found |= stage.options | stage.options.get("options", {})
    return {name: float(x) for name, x in found.items() if type(x) in (int, float) and math.isfinite(x) and x}


def _names(wrongs: Sequence[Wrong], numbers: Sequence[float]) -> list[str]:
    """Returns the simplest expressions in the cases' sizes and options that equal the numbers, or [] if more than three expressions fit."""
    if np.allclose(np.abs(numbers), 1):
        return []
    known = [quantities(each.case) for each in wrongs]
    common = sorted(set.intersection(*map(set, known)))
    forms = [[(text.format(a), [f(of[a]) for of in known]) for a in common] for text, f in NUMBERS.items()]
    if not np.allclose(numbers, numbers[0], rtol=1e-4):
        pairs = [*combinations(common, 2)]
        forms += [[(t.format(a, b), [f(of[a], of[b]) for of in known]) for a, b in pairs] for t, f in OF_TWO.items()]
    bounds = [SLACK * each.unit + 1e-9 for each in wrongs]
    for alike in forms:
        fitting = {
            name for name, made in alike if (np.abs(np.abs(numbers) - made) <= np.multiply(bounds, np.abs(made))).all()
        }
        if fitting:
            return sorted(fitting) if len(fitting) <= 3 else []
    return []


def _here(names: Sequence[str]) -> str:
    return f" ({' or '.join(names)} here)" if names else ""


def _sentence(wrongs: Sequence[Wrong], numbers: Sequence[float], text: str) -> str:
    """Returns a sentence about a number if its value or the expression that explains it is the same in all results, else ""."""
    first, names = numbers[0], _names(wrongs, numbers)
    if text.endswith("plus {}") and first < 0:
        first, numbers, text = -first, [-x for x in numbers], text.replace("plus", "minus")
    if not np.allclose(numbers, first, rtol=1e-4):
        same = len({*np.sign(numbers)}) == 1
        return text.format("minus " * (first < 0) + " or ".join(names)) if names and same else ""
    if "times" in text and abs(first - 1) < NEAR and (wrongs[0].want.size == 1 or abs(first - 1) < 1e-9):
        return ""  # `error_size` already shows this
    digits = f"{first:.4g}" if abs(first - 1) > NEAR else f"{first:.10g}"
    return text.format(digits) + _here(names)


LISTED = 6
"""Maximum number of indices along an axis that a sentence lists."""
MOST = 64
"""Maximum size of an axis whose indices are compared with each other."""
MEASURES = ((Wrong.factor, "it is {} times the expected value"), (Wrong.summand, "it is the expected value plus {}"))


def shared(wrongs: Sequence[Wrong]) -> list[str]:
    """Returns a sentence, or "", for each wrong result of a stage. A sentence states the factor, summand or function that
    relates the entries of the result to the expected entries."""
    said = [""] * len(wrongs)
    for measure, text in MEASURES:
        found = {i: x for i, each in enumerate(wrongs) if np.isfinite(x := measure(each)) and x != 0 and not said[i]}
        several = [[*found]] if len(found) > 1 and len(found) >= 0.6 * len(wrongs) else []
        alone = [i for i, x in found.items() if wrongs[i].want.size > 1 or _is_plain(wrongs, wrongs[i], x)]
        for group in [*several, *([i] for i in alone)]:
            sentence = _sentence([wrongs[i] for i in group], [found[i] for i in group], text)
            said = [each or (sentence if i in group else "") for i, each in enumerate(said)]
    for name, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            fits = [
                i for i, each in enumerate(wrongs) if not said[i] and each.got.any() and each.fits(function(each.want))
            ]
        if len(fits) > 1 or any(wrongs[i].want.size > 2 for i in fits):
            said = [f"it is {name}" if i in fits else each for i, each in enumerate(said)]
    return said


def _is_plain(wrongs: Sequence[Wrong], wrong: Wrong, factor: float) -> bool:
    """Whether a scalar's factor is a fractional option or its inverse. If only one case fails, the factors 2, 1 and 1/2 also count."""
    options = [x for x in quantities(wrong.case).values() if x != round(x)]
    known = [*options, *(1 / x for x in options), *((0.5, 1.0, 2.0) if len(wrongs) == 1 else ())]
    return bool(np.isclose(abs(factor), known, rtol=SLACK * wrong.unit + 1e-9, atol=0).any())


def relations(wrong: Wrong, arrays: Mapping[str, Array]) -> Iterator[str]:
    """Yields sentences that relate a wrong result to the expected result or to other arrays of its shape, strictest relation first."""
    got, want, differs = wrong.got, wrong.want, wrong.differs
    if (lost := ~np.isfinite(got)).any():
        kind = "NaN" if np.isnan(got[lost]).all() else "not finite"
        yield f"it is {kind} in {np.count_nonzero(lost)} of {got.size} entries{where(wrong, arrays, lost)}"
        return
    place, several = "" if differs.all() else where(wrong, arrays, differs), np.count_nonzero(differs) > 2
    if not got[differs].any():
        yield "it is 0" + (f" where it differs{place}" if got.any() or place else "")
    if (want[differs] == 0).all():
        same = next((f", and is {name} there" for name, x in arrays.items() if wrong.fits(x[differs], differs)), "")
        yield f"only what should be 0 differs{same}"
    if several and len(values := np.unique(got[differs])) == 1:
        yield f"it is {values[0]:.4g} wherever it differs{_here(_names([wrong], [*values]))}{place}"
    for name, other in arrays.items() if several else ():
        with np.errstate(all="ignore"):
            yield from (text.format(name) for text, f in WITH_ANOTHER.items() if wrong.fits(f(want, other)))
            times = float(((got - other) * (want - other)).sum() / ((want - other) ** 2).sum())
        if other.any() and wrong.fits(other + times * (want - other)):
            yield f"its difference from {name} is {times:.4g} times the expected difference"
        if wrong.fits(other[differs], differs):
            yield f"it is the same as {name} where it differs{place}"
    yield from in_other_places(wrong)
    yield from _of_parts(wrong)
    for measure, text in MEASURES if several else ():
        if np.isfinite(number := measure(wrong, differs)) and (said := _sentence([wrong], [number], text)):
            yield f"{said} where it differs{place}"


def in_other_places(wrong: Wrong) -> Iterator[str]:
    """Yields a sentence if the last two axes are swapped or if an index along an axis has the expected values of another index."""
    want, axes = wrong.want, wrong.value.axes
    if want.ndim > 1 and want.shape[-1] == want.shape[-2] and wrong.fits(want.swapaxes(-1, -2)):
        yield "its last two axes are swapped"
    for i, axis in enumerate(axes):
        n = want.shape[i]
        at: list[Any] = [(*[slice(None)] * i, j) for j in range(n)]
        bad = [j for j in range(n) if wrong.differs[at[j]].any()]
        if n > MOST or want.size < max(2 * n, 4) or np.count_nonzero(want) < 2:
            continue
        source = {j: next((k for k in range(n) if k != j and wrong.fits(want[at[k]], at[j])), -1) for j in bad}
        order = [source.get(j, j) for j in range(n)]
        if -1 not in order and sorted(order) == [*range(n)]:
            yield f"it is in {'reverse order' if order == [*range(n)][::-1] else f'the order {order}'} along {axis}"
        elif -1 not in order:
            yield "; ".join(
                f"{one_of(axis)} {j} has the expected values of {one_of(axis)} {k}" for j, k in [*source.items()][:2]
            )


def _of_parts(wrong: Wrong) -> Iterator[str]:
    """Yields a sentence if one factor per token, expert or group, or per pair of such indices, explains the wrong entries."""
    got, want, axes = wrong.got, wrong.want, wrong.value.axes
    long = [i for i in range(want.ndim) if want.shape[i] > 1]
    for kept in [kept for n in range(1, len(long)) for kept in combinations(long, n)]:
        others = tuple(i for i in range(want.ndim) if i not in kept)
        used = np.count_nonzero(want, axis=others)
        top, bottom = ((x * want).sum(axis=others, keepdims=True) for x in (got, want))
        factors = np.divide(top, bottom, out=np.ones_like(top), where=bottom > 0)
        if (want.max(axis=others) > want.min(axis=others))[used > 1].any() and wrong.fits(want * factors):
            over = " and ".join(axes[i] for i in others if want.shape[i] > 1)
            is_one, should = (np.allclose(x.sum(axis=others)[used > 0], 1, rtol=1e-4) for x in (got, want))
            note = (
                ""
                if is_one == should
                else f": its sums over {over} are{' not' * should} 1 but should{' not' * is_one} be"
            )
            yield f"each {' and '.join(one_of(axes[i]) for i in kept)} is off by its own factor{note}"
            return


def where(wrong: Wrong, arrays: Mapping[str, Array], marked: Array) -> str:
    """Describes where the marked entries are, by a property that an array has there or by indices along an axis. Returns "" if unknown."""
    count, axes = int(np.count_nonzero(marked)), wrong.value.axes
    for name, array in (
        {"the expected value": wrong.want, **arrays}.items() if wrong.value.kind == "float" and count else ()
    ):
        true = {"is 0": array == 0, "is above 88": array > 88, "is below 0": array < 0}
        if array.ndim > 1 and array.shape[-1] > 1:
            rows = (array == array[..., :1]).all(axis=-1, keepdims=True)
            true[f"is the same for all {axes[-1]}"] = np.broadcast_to(rows, array.shape)
        for text, at in true.items():
            same = at.sum() == count and (count > 2 or marked.all())
            if at[marked].all() and (same or at.mean() ** count < CHANCE / 10):
                return f", {'only ' * bool(at.sum() > count)}where {name} {text}"
    found = [(1.0, "")]
    for i, axis in enumerate(axes):
        n, places = marked.shape[i], sorted(set(np.nonzero(marked)[i].tolist()))
        k, listed = len(places), ", ".join(map(str, places))
        if 0 < k < n and math.comb(n, k) * (k / n) ** count < CHANCE:
            at_end = k > 1 and places == [*range(n - k, n)]
            text = f"from {one_of(axis)} {places[0]} on" if at_end else f"in {one_of(axis)} {listed}"
            found.append(
                (k / n, f", only {text} ({k} of {n})" if at_end or k <= LISTED else f", only in {k} of {n} {axis}")
            )
    return min(found)[1]


def rounded(wrongs: Sequence[Wrong]) -> str:
    """Returns a sentence that names the number format whose rounding explains all errors of one stage, or "" if no format does."""
    for name, bits in FORMATS.items() if wrongs else ():
        if any(2.0**-bits <= 8 * each.unit for each in wrongs):
            continue
        scales = [tolerance(each.value, each.dtype) / each.unit for each in wrongs]
        errors = [((w.got - w.want) / scale)[w.differs] for w, scale in zip(wrongs, scales, strict=True)]
        found = np.concatenate(errors)
        if len(found) > 2 and all(_is_rounded(each, bits) for each in wrongs):
            return f"it is the expected value rounded to {name}"
        largest, signs = float(np.abs(found).max()), sorted(((found > 0).mean(), (found < 0).mean()))
        random = len(found) > 5 and signs[0] > 0.15 and largest < SPREAD * np.median(np.abs(found))
        if random and 2.0 ** -(bits + 2) < largest < 2.0 ** (1 - bits):
            size = f"2^{math.log2(largest):.1f} of the scale (the largest of {len(found)} entries)"
            return f"its errors are as large as those of {name}: {size}"
    return ""


def short(x: Array, bits: int) -> Array:
    """Rounds the numbers to a significand of `bits` bits."""
    fraction, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(fraction * 2.0**bits), exponent - bits))


def _is_rounded(wrong: Wrong, bits: int) -> bool:
    """Whether each entry has a significand of `bits` bits and differs from the expected entry by at most 1 ulp (for 24 bits, 16 ulp)."""
    last = np.ldexp(1.0, np.frexp(wrong.want)[1] - bits)
    near = np.maximum(last * (1 if bits < 24 else 16), 2.0**-126) >= np.abs(wrong.got - wrong.want)
    return bool((wrong.got == short(wrong.got, bits)).all() and near.all())


def error_size(wrong: Wrong, arrays: Mapping[str, Array]) -> str:
    """Describes the errors relative to the expected values, the number of wrong entries, and their location."""
    error, size = np.abs(wrong.got - wrong.want)[wrong.differs], np.abs(wrong.want)[wrong.differs]
    relative = float(np.median(np.divide(error, size, out=np.full_like(error, np.inf), where=size > 0)))
    percent = f"{100 * relative:.3g} %" if relative < 10 else f"{relative:.2g} times"
    by = f" by {percent} of the expected value" if math.isfinite(relative) else ""
    if wrong.want.size == 1:
        return f"it is too {'large' if wrong.got.item() > wrong.want.item() else 'small'}{by}"
    entries = f"{len(error)} of {wrong.want.size} entries are wrong"
    place = "" if wrong.differs.all() else where(wrong, arrays, wrong.differs)
    return f"{entries}{place}" + (f",{by} (the median)" if by else "")
