"""Computes derivatives by complex-step differentiation, in many directions in a single pass.

A `Perturbed` array holds one complex array per direction. The arrays of all directions have the same real part and different
imaginary parts. NumPy functions process all directions of a `Perturbed` array together. The specification sorts and
compares only real parts, so its decisions are the same for all directions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STEP = 1e-30
MANY = 64
"""The number of directions in one pass."""


def derivatives(function: Callable[[Array], Mapping[str, Any]], directions: Iterable[Array]) -> dict[str, Array]:
    """Returns the derivative of each result of `function(step)` at `step = 0`. The last axis has one entry per direction:

        derivative[name][..., i] = imag(function(1e-30i * direction[i])[name]) / 1e-30

    Where the results are analytic, the derivatives are exact up to rounding. If `function` converts the argument to a plain array or reads
    the imaginary part, `derivatives` calls `function` once per direction. Without directions, the result is an empty dict.
    """
    directions, rows = iter(directions), []
    while chunk := [1j * STEP * direction for direction in islice(directions, MANY)]:
        try:
            with np.errstate(all="ignore"):  # the code below recomputes NaN derivatives, one direction at a time
                slopes = [_slopes(function(moved(np.stack(chunk, axis=-1))), len(chunk))]
        except Exception:
            slopes = []
        if not slopes or not all(np.isfinite(slope).all() for slope in slopes[0].values()):
            slopes = [_slopes(function(step), 1) for step in chunk]
        rows += slopes
    return {name: np.concatenate([each[name] for each in rows], axis=-1) for name in (rows[0] if rows else ())}


def units(sizes: Array) -> Iterator[Array]:
    """Yields a direction for each nonzero entry of `sizes`. Only this entry of the direction is nonzero."""
    for place in np.flatnonzero(sizes):
        unit = np.zeros(sizes.shape)
        unit.flat[place] = sizes.flat[place]
        yield unit


def _slopes(results: Mapping[str, Any], count: int) -> dict[str, Array]:
    each = {name: np.imag(_each(result)) / STEP for name, result in results.items()}
    return {name: np.broadcast_to(slope, (*slope.shape[:-1], count)) for name, slope in each.items()}


class Perturbed(np.ndarray[Any, Any]):
    """Complex arrays with a common real part, stored in `each` (*shape, directions).

    Conversion to a plain array keeps the real part and makes the imaginary part NaN. A function that ignores `each` therefore
    yields a NaN derivative and never a wrong derivative.
    """

    each: Array
    real = property(lambda self: self.each[..., 0].real)
    T = property(lambda self: self.transpose())

    def __getattr__(self, name: str) -> Any:
        if name != "each":
            raise AttributeError(name)
        return np.asarray(self)[..., None]  # NumPy creates instances of this class without `each`

    def __getitem__(self, index: Any) -> Any:
        return moved(self.each[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.each[_index(index)] = _each(value)
        np.asarray(self).real[...] = self.real

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not ufunc.signature and not options:
            return moved(ufunc(*map(_each, inputs)))
        return self.__array_function__(ufunc if method == "__call__" else getattr(ufunc, method), (), inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in RULES:
            return RULES[function](*args, **options)
        each = [function(*_one(args, i), **_one(options, i)) for i in range(self.each.shape[-1])]
        if each[0] is None or options.get("out") is not None:
            raise TypeError(f"{function.__name__} modifies an array in place")
        if np.iscomplexobj(each[0]):
            return moved(np.stack(each, axis=-1))
        if not all(np.array_equal(one, each[0]) for one in each):
            raise TypeError(f"{function.__name__} drops imaginary parts, which carry the derivative")
        return each[0]


def moved(each: Array) -> Any:
    """Returns `each` as a `Perturbed` array. If `each` is not complex, returns the first direction, because all directions are equal."""
    if each.dtype.kind != "c":
        return each[..., 0]
    own = np.empty(each.shape[:-1], np.complex128)
    own.real, own.imag = each[..., 0].real, np.nan
    new = own.view(Perturbed)
    new.each = each
    return new


def _each(array: Any) -> Array:
    """Returns the array with a last axis of directions. For a plain array, this axis has length 1 and broadcasts."""
    return array.each if isinstance(array, Perturbed) else np.asarray(array)[..., None]


def _one(tree: Any, i: int) -> Any:
    """Replaces each `Perturbed` array in nested arguments with the complex array of direction `i`."""
    if isinstance(tree, dict):
        return {key: _one(value, i) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_one(value, i) for value in tree]
    return tree.each[..., i] if isinstance(tree, Perturbed) else tree


def _index(index: Any) -> tuple[Any, ...]:
    index = index if isinstance(index, tuple) else (index,)
    return (*index, slice(None)) if any(part is Ellipsis for part in index) else index


def _reduced(function: Callable[..., Array], x: Any, axis: Any = None, **options: Any) -> Any:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return moved(function(_each(x), axis=tuple(one % x.ndim for one in axes), **options))


def _einsum(subscripts: str, *arrays: Any, **options: Any) -> Any:
    inputs, output = subscripts.split("->")
    free = next(letter for letter in ascii_letters if letter not in subscripts)
    parts = [part + free * isinstance(array, Perturbed) for part, array in zip(inputs.split(","), arrays, strict=True)]
    each = [array.each if isinstance(array, Perturbed) else array for array in arrays]
    return moved(np.einsum(f"{','.join(parts)}->{output}{free}", *each))


def _tensordot(a: Any, b: Any, axes: int) -> Any:
    leading, letters = a.ndim - axes, ascii_letters[: a.ndim + b.ndim - axes]
    return _einsum(f"{letters[: a.ndim]},{letters[leading:]}->{letters[:leading]}{letters[a.ndim :]}", a, b)


def _put_along_axis(x: Any, indices: Array, values: Any, axis: int) -> None:
    np.put_along_axis(x.each, indices[..., None], _each(values), axis % x.ndim)
    x[...] = x


RULES: Mapping[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.mean: lambda *args, **options: _reduced(np.mean, *args, **options),
    np.put_along_axis: _put_along_axis,
    np.reshape: lambda x, *shape: moved(x.each.reshape(*np.ravel(shape), x.each.shape[-1])),
    np.stack: lambda arrays, axis=0: moved(np.stack(np.broadcast_arrays(*map(_each, arrays)), axis - (axis < 0))),
    np.sum: lambda *args, **options: _reduced(np.sum, *args, **options),
    np.take_along_axis: lambda x, indices, axis: moved(np.take_along_axis(x.each, indices[..., None], axis % x.ndim)),
    np.tensordot: _tensordot,
    np.where: lambda *args: moved(np.where(*map(_each, args))),
    np.zeros_like: lambda x: moved(np.zeros_like(x.each)),
}
"""Functions that run on all directions at once. Any other function runs once per direction."""


def _method(name: str, method: Any) -> Callable[..., Any]:
    function = getattr(np, name) if getattr(np, name, None) in RULES else method
    return lambda self, *args, **options: self.__array_function__(function, (), (self, *args), options)


for _name, _function in vars(np.ndarray).items():
    if callable(_function) and not _name.startswith("__") and _name not in vars(Perturbed):
        setattr(Perturbed, _name, _method(_name, _function))
