"""What is used of torch that has no public name, tried with torch 2.13. No other module uses such names.

What another version lacks raises ConfigError: a name when this module is imported, one of Dynamo when it is asked for.
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


# Exchanges that torch.compile traces; tensors with a shape and no numbers; what tells a tracer what holds of a number.
collectives, TracingMode, check = map(_named, ("ops._c10d_functional", "_subclasses.FakeTensorMode", "_check"))
# Of lists of tensors, in one call; the first two in place.
foreach_add, foreach_mul, foreach_norm = map(_named, ("_foreach_add_", "_foreach_mul_", "_foreach_norm"))
_task: Callable[[], int] = _named("_C._current_graph_task_id")


def in_backward() -> bool:
    """Whether a backward pass runs: what is computed is computed a second time."""
    return _task() != -1


def of_dynamo(name: str) -> Any:
    """What the compiler's module has under this name. It takes long to import."""
    return _named(f"_dynamo.{name}")


def traced_as_constant(function: Any) -> None:
    """As `torch.compiler.assume_constant_result`, without the import of Dynamo: the function is called while a compiler traces."""
    function._dynamo_marked_constant = True


@contextmanager
def tracing() -> Iterator[None]:
    """In which `torch.compiler.is_compiling()` is true."""
    before = _named("compiler._is_compiling_flag")
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
