"""The private names of torch that moespec uses, tested with torch 2.13. No other module uses private names.

A name that the installed torch lacks raises ConfigError when this module is imported or, for names of Dynamo, when the name is used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

from moespec.spec.errors import ConfigError


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(torch)
    except AttributeError:
        wanted = "install a supported version: pip install 'torch>=2.11,<2.15'"
        raise ConfigError(f"torch {torch.__version__} has no torch.{name}, which moespec needs; {wanted}") from None


# Collectives that torch.compile traces; tensors that have a shape but no values; a check that tells a tracer facts about a number.
collectives, TracingMode, check = map(_named, ("ops._c10d_functional", "_subclasses.FakeTensorMode", "_check"))
# One call for a list of tensors; the first two work in place.
foreach_add, foreach_mul, foreach_norm = map(_named, ("_foreach_add_", "_foreach_mul_", "_foreach_norm"))
_task: Callable[[], int] = _named("_C._current_graph_task_id")


def in_backward() -> bool:
    """True during a backward pass; a forward pass is then a recomputation."""
    return _task() != -1


def of_dynamo(name: str) -> Any:
    """The attribute `name` of the compiler's module, which is slow to import."""
    return _named(f"_dynamo.{name}")


def traced_as_constant(function: Any) -> None:
    """Like `torch.compiler.assume_constant_result`, without importing Dynamo: the function is called while a compiler traces."""
    function._dynamo_marked_constant = True


@contextmanager
def tracing() -> Iterator[None]:
    """A context in which `torch.compiler.is_compiling()` is true."""
    before = _named("compiler._is_compiling_flag")
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
