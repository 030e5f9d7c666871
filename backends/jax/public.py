"""Compiles the public functions of the JAX backend, and adds the docstrings of the specification to them."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from moespec import spec
from moespec.backends.binding import array_arguments, bound, documented, is_summed
from moespec.backends.common.namespace import RoutingNamespace
from moespec.backends.jax import namespace
from moespec.backends.jax.arrays import Array
from moespec.backends.jax.programs import program
from moespec.backends.jax.slots import SlotRouting, SoftRouting

Function = TypeVar("Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def public(function: Function) -> Function:
    """Returns the public version of a function, with its docstring. Compiles functions with a groups axis (see `programs`)."""
    original = getattr(spec, function.__name__)
    kinds = array_arguments(original)
    if set(kinds.values()) - {"shared"}:
        function = program(function, kinds, is_summed(original))
    return documented(function)


def formula(
    function: Callable[Concatenate[RoutingNamespace[Array, SlotRouting, SoftRouting], Parameters], Result],
) -> Callable[Parameters, Result]:
    """Publishes a formula of `moespec.backends.common` for JAX arrays."""
    return public(bound(function, namespace))
