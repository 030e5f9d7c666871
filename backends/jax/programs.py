"""Compiles public functions to programs. All callers share one program per set of shapes, dtypes and options.

Outside `jax.jit`, JAX compiles every operation of a function separately for each shape, and a function has about a hundred operations.
Compiling one program instead is several times as fast, and calling the program does not dispatch each operation from Python. Inside
`jax.jit`, the operations of a function become part of the traced program.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax

from moespec.backends.jax.explicit import by_groups

Function = TypeVar("Function", bound=Callable[..., Any])
Static = tuple[tuple[str, type, Any], ...]
"""The arguments that are not arrays, each with its type, because 1, 1.0 and True are equal but not all valid."""
NO_KINDS: Mapping[str, str] = {}


def program(function: Function, kinds: Mapping[str, str] = NO_KINDS, summed: bool = False) -> Function:
    """Compiles `function` for calls with JAX arrays and with options that `==` can compare.

    kinds: the kind of each array argument (see `array_arguments`). summed: if true, results are summed over groups (see `by_groups`).

    Calls with NumPy arrays or functions as arguments run uncompiled. Calls that do not match the signature also run uncompiled, so that
    `function` raises the error.
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
    """True for a JAX array, and for a tree that contains only JAX arrays."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


def _is_option(value: Any) -> bool:
    """True if `==` compares the value reliably. NaN does not equal NaN, and a subclass may redefine `==`."""
    return value is None or (type(value) in (bool, int, float, str) and value == value)
