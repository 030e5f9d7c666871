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
    """Adds the specification's docstring to a function. Compiles the function unless groups share all its arrays (see `programs`)."""
    original = getattr(spec, function.__name__)
    kinds = array_arguments(original)
    if set(kinds.values()) - {"shared"}:
        function = program(function, kinds, is_summed(original))
    return documented(function)


def formula(
    function: Callable[Concatenate[RoutingNamespace[Array, SlotRouting, SoftRouting], Parameters], Result],
) -> Callable[Parameters, Result]:
    """Turns a formula of `moespec.backends.common` into a public function of JAX arrays."""
    return public(bound(function, namespace))
