"""Public functions as programs: one per set of shapes, dtypes and options, shared by all callers.

Outside `jax.jit`, JAX compiles every operation separately for each shape, and a function has a hundred operations. As a
program, a function compiles once, several times as fast, and a call does not run each operation through Python. Inside
`jit` nothing changes: the operations become part of the traced program.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax

from moespec.backends.jax.explicit import by_groups

Function = TypeVar("Function", bound=Callable[..., Any])
Static = tuple[tuple[str, type, Any], ...]
"""The arguments that are not arrays, each with its type, because 2, 2.0 and True are equal but not all valid."""
NO_KINDS: Mapping[str, str] = {}


def program(function: Function, kinds: Mapping[str, str] = NO_KINDS, summed: bool = False) -> Function:
    """`function`, compiled for calls with JAX arrays and with options that `==` can compare.

    kinds: the arguments that have groups, from `array_arguments`. summed: whether the result is summed over groups (see `by_groups`).

    Calls with NumPy arrays or functions among the arguments run uncompiled. Calls that do not match the signature also run uncompiled and
    raise the function's own errors.
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
    """True for a JAX array or a tree of JAX arrays only."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


def _is_option(value: Any) -> bool:
    """True if `==` distinguishes the value from others. NaN is not equal to itself, and a subclass may redefine `==`."""
    return value is None or (type(value) in (bool, int, float, str) and value == value)
