"""Builds the public functions of backends: binds formulas to an array namespace, adds docstrings, and finds arguments with groups axes."""

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from moespec import spec
from moespec.spec.array_like import ArrayLike
from moespec.spec.numerics import Leading, Shared
from moespec.spec.routing import Routing, Summed

__all__ = ["array_arguments", "bound", "documented", "is_summed"]

Function = TypeVar("Function", bound=Callable[..., Any])
Namespace = TypeVar("Namespace")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def bound(
    function: Callable[Concatenate[Namespace, Parameters], Result], xp: Namespace
) -> Callable[Parameters, Result]:
    """Binds the array namespace as the first argument of a formula in `common`."""

    @functools.wraps(function)
    def formula(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        return function(xp, *arguments, **options)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    formula.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return formula


def documented(function: Function) -> Function:
    """Appends the specification's docstring to a backend function's docstring, which describes only differences from the specification."""
    original = getattr(spec, getattr(function, "__name__", ""), None)
    if inspect.isfunction(function) and inspect.isfunction(original) and function.__doc__ != original.__doc__:
        local, specified = inspect.getdoc(function), inspect.getdoc(original)
        function.__doc__ = f"{local}\n\nThe specification, for one group:\n\n{specified}" if local else specified
    return function


def array_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Returns the kind of each array or routing argument of a specification function, by argument name.

    The kind is "shared" for an array that all groups share, "leading" for an array with any leading axes, and "group" for an array of one
    group, which has an additional groups axis in a backend. The type hint (`Shared`, `Leading` or a plain array) determines the kind.
    """
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    kinds = {name: _kind(hint) for name, hint in hints.items()}
    return {name: kind for name, kind in kinds.items() if kind}


def is_summed(function: Callable[..., Any]) -> bool:
    """True if the return type of a specification function is `Summed`, so that a backend sums the result over the groups."""
    return bool(get_type_hints(function, include_extras=True).get("return") == Summed)


def _kind(hint: Any) -> str:
    alternatives = get_args(hint) or (hint,)
    if hint == Shared or Shared in alternatives:
        return "shared"
    if hint == Leading or Leading in alternatives:
        return "leading"
    is_array = hint is ArrayLike or (get_origin(hint) in (Union, UnionType) and ArrayLike in alternatives)
    return "group" if is_array or hint is Routing else ""
