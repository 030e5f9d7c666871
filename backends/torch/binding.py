"""The formulas of `moespec.backends.common` on tensors."""

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
    """A formula of `moespec.backends.common`, on tensors."""
    return bound(function, cast(Tensors, namespace))
