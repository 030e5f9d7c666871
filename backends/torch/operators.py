"""Operators of our own, which torch.compile takes whole."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.library import custom_op

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef


# torch keeps one operator of each name in a process and frees the one before: a copy of this package has its own.
NAMESPACE = __name__.replace(".", "_")


def operator(function: Callable[..., object]) -> "CustomOpDef":
    """The decorated function as an operator of torch that changes none of its arguments."""
    return custom_op(f"{NAMESPACE}::{function.__name__.lstrip('_')}", mutates_args=())(function)
