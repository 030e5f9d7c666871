"""Operators of our own, which torch.compile takes whole."""

from collections.abc import Callable
from typing import TypeVar

from torch.library import CustomOpDef, custom_op

__all__ = ["operator"]

Function = TypeVar("Function", bound=Callable[..., object])

# torch keeps one operator of each name in a process and frees the one before: a copy of this package has its own.
NAMESPACE = __package__.replace(".", "_")


def operator(function: Function) -> CustomOpDef:
    """The decorated function as an operator of torch that changes none of its arguments."""
    return custom_op(f"{NAMESPACE}::{function.__name__.lstrip('_')}", mutates_args=())(function)
