"""Binds the formulas of `moespec.backends.common` to the array namespace of torch."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from torch import Tensor

from moespec.backends.binding import bound
from moespec.backends.common.namespace import RoutingNamespace
from moespec.backends.torch import namespace
from moespec.backends.torch.slots import SlotRouting, SoftRouting

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Tensors = RoutingNamespace[Tensor, SlotRouting, SoftRouting]


def formula(function: Callable[Concatenate[Tensors, Parameters], Result]) -> Callable[Parameters, Result]:
    """Binds a formula of `moespec.backends.common` to the array namespace of torch."""
    return bound(function, cast(Tensors, namespace))
