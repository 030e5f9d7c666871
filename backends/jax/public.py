"""Makes functions public in the JAX backend, as programs with the docstrings of the specification."""

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
    """Publishes a function of the specification in this backend. A function with a groups axis becomes a program (see `programs`)."""
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
