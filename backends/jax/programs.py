"""Public functions as programs: one for each set of shapes, dtypes and options, whoever calls them.

Outside of `jax.jit` JAX compiles every operation by itself, for each shape that it meets, and a function has a hundred.
As a program it is compiled once, several times as fast, and called without the way of each operation through Python.
Inside of a `jit` nothing changes: the operations become part of the program that is traced.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax

from moespec.backends.jax.explicit import by_groups

Function = TypeVar("Function", bound=Callable[..., Any])
Static = tuple[tuple[str, type, Any], ...]
"""Arguments that are not arrays. The type is that of the value, since 2, 2.0 and True are equal and not all are valid."""
NO_KINDS: Mapping[str, str] = {}


def program(function: Function, kinds: Mapping[str, str] = NO_KINDS, summed: bool = False) -> Function:
    """`function`, whose calls with arrays of JAX, and options that can be told from each other, are compiled.

    kinds, summed: which arguments have groups, as `array_arguments` says, and whether the result adds: see `by_groups`.

    Others, with arrays of NumPy or functions among the arguments, are made as they are, as are those that do not fit the
    signature, whose errors are the function's own.
    """
    signature = inspect.signature(function)
    function = by_groups(kinds, summed=summed)(function)

    def of_arrays(arrays: dict[str, Any], static: Static) -> Any:
        return function(**arrays, **{name: value for name, _, value in static})

    of_arrays.__name__ = of_arrays.__qualname__ = function.__name__
    compiled = jax.jit(of_arrays, static_argnums=1, inline=True)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **options).arguments
        except TypeError:
            return function(*arguments, **options)
        arrays = {name: value for name, value in bound.items() if _is_of_arrays(value)}
        static = tuple((name, type(value), value) for name, value in bound.items() if name not in arrays)
        if not arrays or not all(_is_option(value) for _, _, value in static):
            return function(*arguments, **options)
        return compiled(arrays, static)

    return cast(Function, call)


def _is_of_arrays(value: Any) -> bool:
    """Whether a value is an array of JAX or a tree of nothing else."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


def _is_option(value: Any) -> bool:
    """Whether a value can be told from others by `==`, which NaN cannot and a subclass may define."""
    return value is None or (type(value) in (bool, int, float, str) and value == value)
